"""Start of a resumed run: its configuration, and the newest checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from esper_overwatch.protocol.errors import (
    EsperError,
    FolderError,
    NameTaken,
    RunNotFound,
    WireError,
    first_line,
)
from esper_overwatch.protocol.journal.reader import last_words
from esper_overwatch.protocol.messages.events import RunRewound
from esper_overwatch.protocol.runs import RunFolder, find_run, was_trained
from esper_overwatch.protocol.storage.folders import write_atomically
from esper_overwatch.protocol.storage.records import read_record
from esper_overwatch.trainer.checkpoint import Checkpoints
from esper_overwatch.trainer.checkpoint import load as load_checkpoint
from esper_overwatch.trainer.checkpoint_files import CheckpointError, find_checkpoint, list_checkpoints
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup, RanksError
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.policy.saved_policy import with_policy_options
from esper_overwatch.trainer.ranks.rank_states import redistribute

CHANGEABLE_OPTIONS = (
    "rounds",
    "device",
    "task.data_dir",
    "telemetry.",
    "profiler.",
    "checkpoint.",
    "journal.",
    "alerts.",
    "metrics.",
    "evaluation.",
    "policy.file",
    "envs.threads",
    "compile.",
    "cuda.",
)
"""Options that a resumed run may be given again; the others shape what the checkpoint holds."""


CONFIG_FILE, SOURCES_FILE = "config.json", "config.sources.json"
"""A run's configuration, and by key where the value came from."""


def load_configuration(
    resumed: str | None, preset: str | None, file: Path | None, sets: Iterable[str]
) -> settings.SourcedConfig:
    """Merge the configuration of a start, over that of the run that is resumed where there is one.

    Raises:
        ConfigError: as `settings.load_sourced`.
        PolicyMismatch: the policy that a new run is to begin with cannot be used.
        RunNotFound: there is no such run, or it is a published one.
        FolderError: the saved configuration cannot be read.
    """
    saved, sources = (None, None) if resumed is None else _saved_configuration(resumed)
    sourced = settings.load_sourced(
        preset=preset, file=file, environ=os.environ, sets=sets, saved=saved, saved_sources=sources
    )
    if saved is None:
        return with_policy_options(sourced)
    if sourced.config.policy.file != saved.get("policy", {}).get("file", ""):
        raise settings.ConfigError("policy.file: a resumed run goes on with its own policy; leave it out")
    return sourced


@contextmanager
def replaced_configuration(folder: Path, sourced: settings.SourcedConfig) -> Iterator[None]:
    """Write the configuration of a start into the run's folder, and where its values came from.

    Where the body raises, the start is refused, and the next one finds what was there before.
    """
    files = {
        folder / CONFIG_FILE: msgspec.json.encode(sourced.config),
        folder / SOURCES_FILE: msgspec.json.encode(sourced.sources),
    }
    before = {path: path.read_bytes() for path in files if path.exists()}
    changed = [path for path, content in files.items() if before.get(path) != content]
    for path in changed:  # a resume as before needs no room on a full disk
        write_atomically(path, files[path])
    try:
        yield
    except EsperError:
        for path in changed:
            if path in before:
                write_atomically(path, before[path])
        raise


def _saved_configuration(name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Read the options a run was last started with, and the source of each; empty where not recorded."""
    run = find_run(name)
    if run.kind == "published":
        raise RunNotFound(f"run {run.name} is published by a loop of its own, which alone can resume it")
    path = run.path / CONFIG_FILE
    try:
        tree = read_record(path, dict[str, Any])
    except (OSError, WireError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise FolderError(
            f"run {run.name} cannot go on: {path}: {why}; put a copy of it back, or write it anew from the "
            f"`config` that esper-daemon replay {run.name} --type run.started --json prints"
        ) from None
    tree.pop("wire", None)  # of versions that listened on TCP themselves
    try:
        return tree, msgspec.json.decode(path.with_name(SOURCES_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return tree, {}


@dataclass(frozen=True)
class ResumeRequest:
    """Request to resume a run."""

    chosen: str | None = None
    """`best`, a tag or a file; None = the newest checkpoint."""
    skip_damaged: bool = False
    """Take the newest that can be read; nobody is there who could move others away."""
    changeable: tuple[str, ...] = ()
    """Options that may be others than the checkpoint's, beside `CHANGEABLE_OPTIONS`; `.` ends a section."""
    prepare: Callable[[dict[str, Any]], tuple[str, ...]] = lambda _: ()
    """Changes what was read before it is loaded, and names `LiveParameters` that are to be as configured
    afterwards; may raise CheckpointError."""


@dataclass(frozen=True)
class ResumePoint:
    """The newest checkpoint of a run, which fits the configuration, shared out over the ranks."""

    path: Path
    state: dict[str, Any]
    damaged: Sequence[str] = ()
    """Damage of newer ones."""
    as_configured: tuple[str, ...] = ()
    """Parameters whose configured values win over those in the state."""

    @classmethod
    def find(
        cls, checkpoints: Checkpoints, config: Config, ranks: int, request: ResumeRequest
    ) -> ResumePoint | None:
        """Read it; None where nothing has been saved yet.

        Raises:
            CheckpointError: it cannot be read, or does not fit.
        """
        damaged: list[str] = []
        newest: tuple[Path, dict[str, Any]] | None
        if request.chosen is None:
            newest = checkpoints.latest(
                on_damaged=(lambda error: damaged.append(str(error))) if request.skip_damaged else None
            )
        else:
            path = find_checkpoint(checkpoints.folder, request.chosen)
            newest = path, load_checkpoint(path)
        if newest is None:
            return None
        path, state = newest
        try:
            changeable = (*CHANGEABLE_OPTIONS, *request.changeable)
            _require_same_shape(path, json.loads(state["config"]), msgspec.to_builtins(config), changeable)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise CheckpointError(
                f"checkpoint {path} is not of a training: it has no configuration"
            ) from None
        as_configured = request.prepare(state)
        checkpoints.go_on_from(path)
        if len(state.get("other_ranks", [])) + 1 != ranks:
            state = redistribute(state, ranks)
        return cls(path, state, damaged, as_configured)

    def configure(self, config: Config) -> Config:
        """The configuration of the run that goes on here, whose policy is that of the checkpoint."""
        return replace(config, policy=replace(config.policy, file=""))

    @property
    def execution(self) -> Execution | None:
        """Execution of the hosts; None where it is to be measured."""
        return Execution.from_dict(self.state["execution"]) if "execution" in self.state else None

    @property
    def rank_states(self) -> list[bytes]:
        """State for each rank to load; nothing for rank 0."""
        return [b"", *(bytes(tensor.numpy()) for tensor in self.state.get("other_ranks", []))]


def _require_same_shape(
    path: Path, saved: dict[str, Any], now: dict[str, Any], changeable: tuple[str, ...], prefix: str = ""
) -> None:
    for key, value in now.items():
        name = prefix + key
        if name.startswith(changeable):
            continue
        if isinstance(value, dict):
            _require_same_shape(path, saved.get(key, {}), value, changeable, name + ".")
        elif key in saved and saved[key] != json.loads(json.dumps(value)):
            raise CheckpointError(
                f"checkpoint {path.name} was made with {name} = {saved[key]}; it cannot go on with {value}"
            )


def rewind_of(run: RunFolder, last: dict[str, int], round: int, epoch: int) -> RunRewound | None:
    """The event of a boot that goes on from here; None where there was no boot before it.

    Args:
        last: the newest number before this boot, per stream.
        round: of the checkpoint; where an episode is over, as many as are finished.
        epoch: of the episode; 0 = the next round is to begin.
    """
    words = last_words(run.events) if any(last.values()) else None
    if words is None:
        return None
    return RunRewound(
        round=round if epoch else round + 1,
        epoch=epoch,
        from_round=words.round,
        from_epoch=words.epoch,
        last=last,
    )


def check_is_new(run: RunFolder, resume: str | None) -> None:
    """Raise NameTaken where a new run has the name of one that was trained."""
    if run.existed and resume is None and run.has_events:
        raise NameTaken(
            f"run {run.name} has been trained before; --resume {run.name} goes on, or choose another name"
        )


def run_progress(name: str | None, resume: str | None) -> list[int]:
    """Progress of this machine's copy of a run, to compare with others'; empty where it has none."""
    try:
        name = name if resume is None else find_run(resume).name
    except RunNotFound:
        return []
    if name is None or not was_trained(name):
        return []
    files = list_checkpoints(find_run(name).path / "checkpoints")
    return [1, *files[-1].order] if files else [1]


def resumed_name(group: ProcessGroup, name: str | None, resume: str | None) -> str | None:
    """The run to resume: the one that is asked for, or after a restart the one that these ranks train.

    Args:
        group: of this attempt.
        name: of a new run.
        resume: the run that is asked for.

    Raises:
        RanksError: the run has no name, or no machine that is left has its folder.
    """
    if group.size > 1 and not (name or resume):
        raise RanksError("a run on several ranks needs a NAME, by which torchrun's restart finds it")
    if resume is not None or name is None or not group.restarted:
        return resume
    if was_trained(name):
        return name
    if group.recorded_home:
        raise RanksError(
            f"run {name} is kept at {group.recorded_home}, and no machine of this attempt has that folder; "
            "let ESPER_HOME of all machines be one shared folder, or bring that machine back"
        )
    return None  # an attempt before failed before it had begun
