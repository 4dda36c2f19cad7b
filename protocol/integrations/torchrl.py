"""TorchRL's logger that publishes a run: `Trainer(..., logger=TorchRLLogger("my-run"))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchrl.record.loggers.common import Logger

from esper_overwatch.protocol.publishing.description import to_json_tree
from esper_overwatch.protocol.publishing.pictures import ArrayPicture
from esper_overwatch.protocol.publishing.run import PublishedRun, publish


class TorchRLLogger(Logger):
    """Publishes numbers, histograms, hyperparameters, and of a film its last frame.

    A logger cannot end a training; a program that is to obey asks for it: `logger.experiment.asked("stop")`.

    Args:
        run: name of the run, None = one is made; or a run of `publish`, whose owner ends it.
        resume: go on in the run of this name where there is one.

    Attributes:
        experiment: the run.
    """

    experiment: PublishedRun

    def __init__(self, run: PublishedRun | str | None = None, *, resume: bool = False) -> None:
        self._is_owner = not isinstance(run, PublishedRun)
        made = run if isinstance(run, PublishedRun) else publish(run, resume=resume)
        self._made = made
        super().__init__(exp_name=made.name, log_dir=str(made.path))

    def _create_experiment(self) -> PublishedRun:
        return self._made

    def log_scalar(self, name: str, value: Any, step: int | None = None) -> None:
        """Log a number; without a step at the newest one."""
        self._log(name, value, step)

    def log_video(self, name: str, video: Any, step: int | None = None, **kwargs: Any) -> None:
        """Log the last frame of a film as an image.

        Args:
            name: of the film.
            video: `[N, T, C, H, W]` or less; floats from 0 to 1, or integers from 0 to 255.
            step: at which.
            kwargs: how to write films; not used.
        """
        while video.ndim > 3:
            video = video[-1]
        self._log(name, ArrayPicture(video, "CHW"), step)

    def log_histogram(self, name: str, data: Sequence[Any], **kwargs: Any) -> None:
        """Log an array as a histogram; `step` is used of the other arguments."""
        self._log(name, data, kwargs.get("step"))

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Add hyperparameters to the run's configuration."""
        self.experiment.config.update(to_json_tree(cfg))

    def shutdown(self, timeout: float | None = None) -> None:
        """Have all in the journal; end the run, unless it is somebody else's."""
        self.experiment.flush()
        if self._is_owner:
            self.experiment.finish()
        self._service_shutdown = True

    def _log(self, name: str, value: Any, step: int | None) -> None:
        run = self.experiment
        run.log({name: value}, step=max(0, run.step) if step is None else step)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.exp_name!r})"
