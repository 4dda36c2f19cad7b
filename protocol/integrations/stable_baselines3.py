"""Training with Stable-Baselines3, published: `model.learn(n, StableBaselines3Callback("my-run"))`."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, KVWriter, filter_excluded_keys

from esper_overwatch.protocol.publishing.run import PublishedRun

from .training_run import TrainingRun

FORMAT_NAME = "publish"
"""For `logger.record(..., exclude="publish")`."""


class StableBaselines3Callback(BaseCallback):
    """Publishes a training: what its logger dumps, the model's settings; obeys `stop` and `checkpoint`.

    The library tells its callbacks of no exception: a run that is to end with it although the program goes on
    is given as `with publish(...) as run`.

    Args:
        run: name of the run, None = one is made; or a run of `publish`, whose owner ends it.
        resume: go on in the run of this name where there is one.

    Raises:
        PublishError: `resume` with a run of `publish`.
    """

    def __init__(self, run: PublishedRun | str | None = None, *, resume: bool = False) -> None:
        super().__init__()
        self._training = TrainingRun(run, resume)
        self._format = RunOutputFormat(self._training)

    def _on_training_start(self) -> None:
        settings = {name: value for name, value in vars(self.model).items() if _is_setting(name, value)}
        policy = type(self.model.policy).__name__
        self._training.start({"algorithm": type(self.model).__name__, "policy": policy, **settings})
        if self._format not in self.logger.output_formats:
            self.logger.output_formats.append(self._format)

    def _on_step(self) -> bool:
        save, is_to_save, is_to_stop = self._training.take_commands()
        if is_to_save:
            self._training.save(self.num_timesteps, ".zip", self.model.save, save)
        return not is_to_stop

    def _on_training_end(self) -> None:
        if self._format in self.logger.output_formats:
            self.logger.output_formats.remove(self._format)
        self._training.finish()


class RunOutputFormat(KVWriter):
    """Output format of a `Logger` that publishes rows at the number of timesteps.

    Args:
        training: where to.
    """

    def __init__(self, training: TrainingRun) -> None:
        self._training = training

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Publish one row."""
        values = filter_excluded_keys(key_values, key_excluded, FORMAT_NAME)
        self._training.log({k: v for k, v in values.items() if not isinstance(v, HParam)}, step)

    def close(self) -> None:
        """Nothing is open: the callback ends the run."""


def _is_setting(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, bool | int | float | str | dict)
