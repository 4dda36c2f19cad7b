"""wandb's functions that publish a run: one changed import makes a loop one that is watched here.

import esper_overwatch.compat.wandb as wandb
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from esper_overwatch.protocol.messages.vocabulary import Severity
from esper_overwatch.protocol.publishing.description import describe
from esper_overwatch.protocol.publishing.pictures import ArrayPicture
from esper_overwatch.protocol.publishing.run import PublishedRun, publish
from esper_overwatch.protocol.publishing.values import fit_step

logger = logging.getLogger(__name__)


class AlertLevel(StrEnum):
    """Levels of alerts by wandb's names."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


_SEVERITIES: dict[str, Severity] = {"INFO": "info", "WARN": "warning", "ERROR": "critical"}


class CompatibleConfig(MutableMapping[str, Any]):
    """A run's configuration, whose items are attributes, too."""

    _values: dict[str, Any]
    _run: CompatibleRun

    def __init__(self, run: CompatibleRun, values: Mapping[str, Any]) -> None:
        vars(self).update(_run=run, _values=dict(values))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the config has no {name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, values: Any = (), /, allow_val_change: bool = True, **more: Any) -> None:
        """Set values, of a dict, a Namespace or the like."""
        new = {**_settings(values), **more}
        self._values.update(new)
        self._run.publish_config(new)


class LoggedArray:
    """An array to be logged as a histogram."""

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        self.values, self.np_histogram, self.num_bins = sequence, np_histogram, num_bins


class LoggedImage:
    """An image to be logged: an array or tensor, one of Pillow, or the path of a file."""

    def __init__(self, data_or_path: Any, *_args: Any, **_named: Any) -> None:
        self.value = data_or_path
        if isinstance(data_or_path, str | os.PathLike):
            self.value = Path(data_or_path)
        elif isinstance(shape := getattr(data_or_path, "shape", None), tuple):
            layout = "CHW" if hasattr(data_or_path, "detach") else "HWC"
            self.value = ArrayPicture(data_or_path, layout if len(shape) == 3 else "HW")


class LoggedRows:
    """A table to be logged: of a frame, or of columns and rows."""

    def __init__(
        self, columns: Any = None, data: Any = None, rows: Any = None, dataframe: Any = None, **_: Any
    ):
        self.frame = dataframe
        self.columns = list(columns or ())
        self.data = list(data if data is not None else rows or ())

    def add_data(self, *row: Any) -> None:
        """Add a row."""
        self.data.append(row)

    @property
    def value(self) -> Any:
        """What is published."""
        return self if self.frame is None else self.frame


class Media:
    """A film, a graph, an artifact: taken, and not published."""

    def __init__(self, *_args: Any, **_named: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_args, **_named: self


class CompatibleRun:
    """A run as wandb's programs know it.

    Args:
        run: what is published; None = nothing is (`mode="disabled"`).
        config: it begins with.
        project: for whoever asks.
    """

    def __init__(self, run: PublishedRun | None, config: Mapping[str, Any], project: str) -> None:
        self._run, self.project, self.step = run, project, 0
        self.name, self.id = (run.name, run.id) if run else ("disabled", "disabled")
        self.dir = str(run.path) if run else ""
        self.url = f"esper-tui {self.name}" if run else ""
        self.config = CompatibleConfig(self, config)
        self.summary: Any = run.summary if run else {}
        self._told: set[str] = set()

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **_: Any
    ) -> None:
        """Log values at a step; None = the newest, which ends with it unless `commit` is False."""
        if step is not None:
            self.step = fit_step(step, self.step, lambda name, why: logger.warning("%s: %s", name, why))
        if self._run is not None:
            self._run.log(self._publishable(data), step=self.step)
        if commit or (commit is None and step is None):
            self.step += 1

    def publish_config(self, values: Mapping[str, Any]) -> None:
        """Change what the run was started with."""
        if self._run is not None:
            self._run.config.update(values)

    def alert(self, title: str, text: str = "", level: Any = None, wait_duration: Any = 0) -> None:
        """Raise an alert; a level is an `AlertLevel` or its text."""
        if self._run is not None:
            self._run.alert(title, text, _SEVERITIES.get(str(level).upper(), "info"))

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run; an exit code other than 0 = it has failed."""
        global _current
        if self._run is not None:
            self._run.finish(RuntimeError(f"exit code {exit_code}") if exit_code else None)
        if _current is self:
            _current = None

    def __enter__(self) -> CompatibleRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(0 if error is None else 1)

    def __getattr__(self, name: str) -> Any:
        """Watch, save, artifacts and the like: nothing is published of them, which is said once for each."""
        if name.startswith("_"):
            raise AttributeError(name)

        def leave_out(*args: Any, **_named: Any) -> Any:
            self._leave_out(name)
            return args[0] if args else Media()

        return leave_out

    def define_metric(self, *_args: Any, **_named: Any) -> Media:
        """Take it: what axis a chart has is chosen where it is looked at."""
        return Media()

    def _publishable(self, data: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in data.items():
            if isinstance(value, LoggedArray):
                found[name] = value.values
            elif isinstance(value, LoggedImage | LoggedRows):
                found[name] = value.value
            elif isinstance(value, list) and value and isinstance(value[0], LoggedImage):
                found[name] = self._publishable({str(i): image for i, image in enumerate(value)})
            elif isinstance(value, Mapping):
                found[name] = self._publishable(value)
            elif isinstance(value, Media):
                self._leave_out(f"{name}, a film or the like:")
            else:
                found[name] = value
        return found

    def _leave_out(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning("run %s: %s publishes nothing", self.name, what.rstrip(":"))


def _settings(config: Any) -> Mapping[str, Any]:
    """A configuration of any kind, by name."""
    return config if isinstance(config, Mapping) else describe(config or None, (), "", strict=False).config


_current: CompatibleRun | None = None


def current() -> CompatibleRun | None:
    """The run that `init` has begun and that has not ended."""
    return _current


def init(
    entity: str | None = None,
    project: str | None = None,
    *,
    name: str | None = None,
    config: Any = None,
    tags: Any = (),
    notes: str | None = None,
    mode: str | None = None,
    **_: Any,
) -> CompatibleRun:
    """Begin a run, or give back the one that has begun.

    Args:
        entity, project: two more tags.
        name: of the run; None = that of the project, or one is made.
        mode: `disabled` = nothing is published; also by `WANDB_MODE`.
    """
    global _current
    if _current is not None:
        return _current
    values = _settings(config)
    run = None
    if (mode or os.environ.get("WANDB_MODE")) != "disabled":
        words = [word for word in (entity, project, *(tags or ())) if word]
        run = publish(name or project, config=config, tags=words, notes=notes or "")
    _current = CompatibleRun(run, values, project or "")
    return _current
