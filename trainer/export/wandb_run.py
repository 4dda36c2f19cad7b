"""An offline run of Weights & Biases, which `wandb sync` uploads; nothing in here uses a network.

History has one row per epoch, counted over all rounds: the tags of `scalars`, `round`, and `system/<field>`
of the newest sample before the epoch's end. What a round's end measured is part of its last epoch's row, and
drawn over `round`. Wall times are the run's; the relative time that wandb adds to each row is the export's.

Histograms, texts, tables and images of a published run are in its history; an image that is gone is named.
Of a published run, history has its numbers in the order in which they were logged, their step in the column
`step`, over which all are drawn: its steps may repeat and go back, and wandb's own only rise.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from wandb.errors import Error as WandbError

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import PASSING_ERRNOS
from esper_overwatch.protocol.messages.events import (
    Artifact,
    Histogram,
    LoggedTable,
    LoggedText,
    RunConfigured,
    RunStarted,
    RunStopped,
    Scalars,
    Summary,
    SystemSample,
)
from esper_overwatch.protocol.runs import RunInfo

from .scalars import epoch_of, read_episode_epochs, scalars

PROJECT = "esper-overwatch"
MAX_TAG_CHARACTERS = 64
STEP = "step"
"""Column of a published run's steps."""
LOGGED_STEP = "loop/step"
"""Column of the number that a loop has logged under that name."""
_KEPT_VARIABLES = ("WANDB_PROJECT", "WANDB_ENTITY")
_FACTS = tuple(field.name for field in fields(RunStarted) if field.name not in ("config", "execution"))


def write(events: Iterator[Event], folder: Path, *, run: RunInfo) -> dict[str, Any]:
    """Write `wandb/offline-run-<time>-<id>`; it replaces that of an earlier export of the run.

    Args:
        folder: exists.
        run: its id and name become those of the wandb run.

    Raises:
        OSError: the folder cannot be written, or wandb failed.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as part, _offline(Path(part)):
        try:
            made, rows = _record(events, Path(part), run)
        except WandbError as error:
            raise _error(str(error)) from None
        finally:
            wandb.teardown()
        _check_log(made)
        runs = folder / "wandb"
        runs.mkdir(exist_ok=True)
        for old in runs.glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(old)
        target = Path(shutil.move(made, runs / made.name))
    return {"format": "wandb", "to": str(target), "rows": rows}


def _record(events: Iterator[Event], folder: Path, run: RunInfo) -> tuple[Path, int]:
    """The folder of the wandb run that is written into `folder`, and the rows of its history."""
    episode = read_episode_epochs(run)
    recorded = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        entity=os.environ.get("WANDB_ENTITY"),
        id=run.id,
        name=run.name,
        notes=f"Exported from the journal of the run {run.name} ({run.id}).",
        settings=_settings(folder),
    )
    made = Path(recorded.dir).parent
    if run.kind == "published":
        recorded.define_metric("*", step_metric=STEP)
    else:
        for prefix in ("round", "ppo"):
            recorded.define_metric(f"{prefix}/*", step_metric="round")
    history, exit_code = _History(recorded), 0
    for event in events:
        data = event.data
        if isinstance(data, RunStarted):
            _describe(recorded, data)
        elif isinstance(data, RunConfigured):
            recorded.config.update(data.config, allow_val_change=True)  # type: ignore[no-untyped-call]
        elif isinstance(data, RunStopped):
            exit_code = data.exit_code
            recorded.summary.update({"stopped": data.reason, "rounds": data.rounds})
        elif isinstance(data, SystemSample):
            history.add_system(data)
        elif isinstance(data, Scalars):
            history.add_logged(data.step, data.values, event.ts)
        elif isinstance(data, Histogram | LoggedText | LoggedTable | Artifact):
            history.add_logged(data.step, {data.name: _value_of(data)}, event.ts)
        elif isinstance(data, Summary):
            recorded.summary.update({**data.numbers, **data.texts})
        else:
            history.add(event, episode)
    history.flush()
    recorded.finish(exit_code=exit_code)
    return made, history.count


class _History:
    """Gathers the row of each epoch; a row is complete when a later epoch begins.

    One of a published run is complete when another step comes, or a name that it has.
    """

    def __init__(self, recorded: wandb.Run) -> None:
        self.count = 0
        self._recorded = recorded
        self._step: int | None = None
        self._row: dict[str, Any] = {}
        self._system: dict[str, float] = {}

    def add_system(self, sample: SystemSample) -> None:
        """Keep the newest: it goes into the next row."""
        self._system = {f"system/{key}": value for key, value in vars(sample).items() if value is not None}

    def add(self, event: Event, episode_epochs: int) -> None:
        """Take the scalars of an event."""
        values = {tag: value for tag, value, _ in scalars(event, episode_epochs)}
        if not values:
            return
        step = epoch_of(event, episode_epochs)
        if self._step is None or step > self._step:
            self.flush()
            self._step = step
        clock = {"round": event.ctx.round, "_timestamp": event.ts / 1e6}
        self._row |= values | clock | self._system
        self._system = {}

    def add_logged(self, step: int, logged: Mapping[str, Any], ts: int) -> None:
        """Take what a loop has logged.

        Args:
            step: at which.
            logged: values by name.
            ts: when, microseconds.
        """
        values = {LOGGED_STEP if name == STEP else name: value for name, value in logged.items()}
        if step != self._row.get(STEP) or values.keys() & self._row.keys():
            self.flush()
        self._row |= self._system | values | {STEP: step, "_timestamp": ts / 1e6}
        self._system = {}

    def flush(self) -> None:
        """Write the row, if there is one."""
        if self._row:
            self._recorded.log(self._row, step=self._step)
            self.count += 1
        self._row = {}


def _value_of(data: Histogram | LoggedText | LoggedTable | Artifact) -> Any:
    """What wandb's history has of it."""
    if isinstance(data, LoggedText):
        return data.text
    if isinstance(data, LoggedTable):
        return wandb.Table(columns=[*data.columns], data=data.rows, allow_mixed_types=True)
    if isinstance(data, Artifact):
        if data.kind != "image":
            return data.path
        try:
            return wandb.Image(data.path)
        except (OSError, ValueError):  # it is gone, or is no image
            return data.path
    if not data.counts or data.min is None or data.max is None:
        return None
    low, high = data.min, data.max if data.max > data.min else data.min + 1.0
    edges = np.linspace(low, high, len(data.counts) + 1)
    return wandb.Histogram(np_histogram=(np.array(data.counts), edges))


def _describe(recorded: wandb.Run, started: RunStarted) -> None:
    """Configuration and tags as of the newest boot."""
    facts = {name: getattr(started, name) for name in _FACTS}
    values = {**started.config, "started": facts}
    recorded.config.update(values, allow_val_change=True)  # type: ignore[no-untyped-call]
    if started.notes:
        recorded.notes = started.notes
    tags = (started.task, started.policy, started.device, *started.tags)
    recorded.tags = tuple(dict.fromkeys(tag[:MAX_TAG_CHARACTERS] for tag in tags if tag))


def _settings(folder: Path) -> wandb.Settings:
    """No upload, no output, and nothing of this machine or this process: the run was elsewhere."""
    return wandb.Settings(
        mode="offline",
        root_dir=str(folder),
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


@contextmanager
def _offline(folder: Path) -> Iterator[None]:
    """Leave wandb no variable that would change the run, and no reason to report errors or use its caches.

    What its own log cannot hold is nobody's error, or each line would be told with a traceback.
    """
    raises = logging.raiseExceptions
    before = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    ours = {
        **{name: value for name, value in before.items() if name in _KEPT_VARIABLES},
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_DATA_DIR": str(folder / "data"),
    }
    _replace_variables(ours)
    logging.raiseExceptions = False
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        _replace_variables(before)


def _replace_variables(wanted: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    os.environ.update(wanted)


def _check_log(made: Path) -> None:
    """wandb's writer is another process: what it could not write, only its log says."""
    log = made / "logs" / "debug-internal.log"
    text = log.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        if '"level":"ERROR"' in line:
            raise _error(json.loads(line).get("msg", line))
    if not text.endswith("\n"):  # a full disk takes no log either, and says so to whoever asks
        log.with_name("probe").write_bytes(bytes(4096))
        raise _error(f"its log {log.name} is cut off")


def _error(message: str) -> OSError:
    """What wandb said, with the disk's error where it names that."""
    number = next((n for n in PASSING_ERRNOS if os.strerror(n).lower() in message.lower()), None)
    return OSError(number, f"wandb: {message}")
