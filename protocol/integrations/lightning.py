"""Training with Lightning, published: `Trainer(callbacks=[LightningCallback("my-run")])`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from esper_overwatch.protocol.publishing.loop_commands import CommandCall
from esper_overwatch.protocol.publishing.run import PublishedRun

from .training_run import TrainingRun

AGREE_EVERY = 10
"""Batches between two looks for commands, where several processes have to agree."""


class LightningCallback(Callback):
    """Publishes a training: metrics, hyperparameters, checkpoints; obeys `stop` and `checkpoint`.

    It adds its own `Logger` to the trainer's: what a module logs with `self.log` is published under its name,
    at Lightning's step. Of several processes the first publishes, and all obey.

    Args:
        run: name of the run, None = one is made; or a run of `publish`, whose owner ends it.
        resume: go on in the run of this name where there is one.

    Raises:
        PublishError: `resume` with a run of `publish`.
    """

    def __init__(self, run: PublishedRun | str | None = None, *, resume: bool = False) -> None:
        self._training = TrainingRun(run, resume)
        self.logger = RunLogger(self._training)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Publish the run, before anything is trained or tested."""
        if trainer.is_global_zero:
            self._training.start(_config_of(trainer, pl_module))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join the trainer's loggers: after `setup`, where `ModelCheckpoint` takes its folder from them."""
        if self.logger not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self.logger]

    on_validation_start = on_test_start = on_fit_start

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Obey what clients have asked for."""
        alone = trainer.world_size == 1
        if not alone and batch_idx % AGREE_EVERY:
            return
        save, is_to_save, is_to_stop = self._training.take_commands()
        if not alone:
            is_to_save, is_to_stop = trainer.strategy.broadcast((is_to_save, is_to_stop))
        if is_to_save:
            self._save(trainer, save)
        if is_to_stop:
            trainer.should_stop = True

    def _save(self, trainer: Trainer, call: CommandCall | None) -> None:
        training, step = self._training, trainer.global_step
        if trainer.world_size == 1:
            training.save(step, ".ckpt", trainer.save_checkpoint, call)
            return
        path = str(training.checkpoint_path(step, ".ckpt", call)) if trainer.is_global_zero else ""
        path = trainer.strategy.broadcast(path)
        trainer.save_checkpoint(path)  # all take part
        training.tell_files(Path(path), step, call)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run with the error."""
        self._leave(trainer, exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run; a later `trainer.test` goes on in it."""
        self._leave(trainer, None)

    def _leave(self, trainer: Trainer, error: BaseException | None) -> None:
        trainer.loggers = [logger for logger in trainer.loggers if logger is not self.logger]
        self._training.finish(error)


class RunLogger(Logger):
    """The logger that `LightningCallback` gives to a trainer; `experiment` is the published run.

    Args:
        training: where to.
    """

    def __init__(self, training: TrainingRun) -> None:
        super().__init__()
        self._training = training
        self._published: dict[str, float] = {}

    @property
    def name(self) -> str | None:
        """Name of the run."""
        return None if self._training.name is None else str(self._training.name)

    @property
    def version(self) -> str | None:
        """The run's boot."""
        return None if self._training.run is None else self._training.run.boot

    @property
    def experiment(self) -> PublishedRun | None:
        """The published run; None outside a training and in processes other than the first."""
        return self._training.run

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Publish numbers."""
        run = self._training.run
        if run is not None:
            self._training.log(metrics, run.step + 1 if step is None else step)

    def log_hyperparams(
        self, params: Mapping[str, Any] | Namespace | None = None, *_args: Any, **_kwargs: Any
    ) -> None:
        """Add those that the run's configuration lacks."""
        given = vars(params) if isinstance(params, Namespace) else dict(params or {})
        new = {name: value for name, value in given.items() if name not in self._training.config}
        if new:
            self._training.configure(new)

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Publish where `ModelCheckpoint` has written."""
        saved = checkpoint_callback
        paths = [*saved.best_k_models, saved.best_model_path, saved.last_model_path]
        for path in dict.fromkeys(Path(path) for path in paths if path):
            time = path.stat().st_mtime if path.exists() else 0.0
            if time and self._published.get(str(path)) != time:
                self._published[str(path)] = time
                run = self._training.run
                self._training.tell_files(path, max(0, run.step) if run else 0)


def _config_of(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Hyperparameters of data and module, by name, and how long they are trained."""
    data = getattr(trainer, "datamodule", None)
    return {
        **(dict(data.hparams) if data is not None else {}),
        **dict(module.hparams),
        "trainer": {
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
            "precision": trainer.precision,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "gradient_clip_val": trainer.gradient_clip_val,
            "world_size": trainer.world_size,
        },
        "model": type(module).__name__,
        "parameters": sum(p.numel() for p in module.parameters()),
    }
