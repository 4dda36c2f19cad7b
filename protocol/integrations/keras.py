"""Training with Keras 3, on any backend: `model.fit(x, y, callbacks=[KerasCallback("my-run")])`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from esper_overwatch.protocol.publishing.run import PublishedRun

from .training_run import TrainingRun


class KerasCallback(keras.callbacks.Callback):
    """Publishes a training: what `fit` logs of each batch and epoch; obeys `stop` and `checkpoint`.

    The step is the number of batches trained. Values of an epoch, those of validation among them, have the
    group `epoch`. Keras tells its callbacks of no exception: a run that is to end with it although the
    program goes on is given as `with publish(...) as run`.

    Args:
        run: name of the run, None = one is made; or a run of `publish`, whose owner ends it.
        resume: go on in the run of this name where there is one.
        every: batches between two whose values are published; each costs a wait for the device.

    Raises:
        PublishError: `resume` with a run of `publish`.
    """

    def __init__(
        self, run: PublishedRun | str | None = None, *, resume: bool = False, every: int = 1
    ) -> None:
        super().__init__()
        self._training, self._every, self._step = TrainingRun(run, resume), every, -1

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        config = {"model": self.model.name, "parameters": self.model.count_params(), **(self.params or {})}
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            config["optimizer"] = optimizer.get_config()
        self._training.start(config)
        if self._training.run is not None:
            self._step = max(self._step, self._training.run.step)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._step += 1
        if batch % self._every == 0:
            self._training.log(logs or {}, self._step)
        save, is_to_save, is_to_stop = self._training.take_commands()
        if is_to_save:
            self._training.save(self._step, ".keras", self.model.save, save)
        if is_to_stop:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        values = {f"epoch/{name}": value for name, value in (logs or {}).items()}
        self._training.log({**values, "epoch": epoch + 1}, self._step)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._training.finish()
