"""Diagnosis of a run, from its journal, its lock, its checkpoints and its post-mortem bundle."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import Struct

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.machine.processes import is_stopped
from esper_overwatch.protocol.messages.events import (
    GovernorRollback,
    Incident,
    RunStarted,
    RunStopped,
    SystemSample,
)
from esper_overwatch.protocol.messages.incidents import incident_order
from esper_overwatch.protocol.messages.vocabulary import RunKindName
from esper_overwatch.protocol.next_commands import resume_command
from esper_overwatch.protocol.runs import CONNECTION_FILE, IDENTITY_FILE, RunInfo
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.protocol.storage.records import read_record
from esper_overwatch.trainer.checkpoint import Checkpoints, load
from esper_overwatch.trainer.checkpoint_files import CheckpointError

from .bundle import PostmortemReport, list_bundles

Ending = Literal["alive", "in order", "failed", "interrupted", "untold", "killed", "never started"]
SILENT_SECONDS = 120.0
"""Silence of a live run, in seconds, after which the doctor advises to look at its threads."""
FULL_MEMORY_SHARE = 0.95


class LastCheckpoint(Struct, kw_only=True, frozen=True):
    """The newest checkpoint on disk; `error` where it cannot be read."""

    path: str
    at: int
    """Wall time, microseconds."""
    round: int = 0
    epoch: int = 0
    error: str | None = None


class _Position(Struct):
    round: int
    epoch: int


class _Saved(Struct):
    """What the doctor reads of a checkpoint."""

    trainer: _Position


class RollbackRecord(Struct, kw_only=True, frozen=True):
    env: int
    round: int
    epoch: int
    reason: str
    cause: str
    """The reason in words."""
    loss: float


class Diagnosis(Struct, kw_only=True):
    """State of a run, found without asking its daemon."""

    run: str
    id: str
    ending: Ending
    kind: RunKindName = "training"
    pid: int | None = None
    is_stopped: bool = False
    """Its process is, by SIGSTOP or Ctrl-Z."""
    boot: str | None = None
    device: str | None = None
    reason: str | None = None
    state: str | None = None
    """COMPLETED, STOPPED or FAILED, where it said a last word."""
    stopped_by: str = ""
    """Who or what stopped it; empty of another end."""
    exit_code: int | None = None
    error: str | None = None
    last_event: str | None = None
    last_at: int | None = None
    """Wall time of the last event, microseconds."""
    round: int = 0
    epoch: int = 0
    rounds: int = 0
    """Rounds that the last boot was to train; 0 = until it is stopped."""
    rollbacks: int = 0
    """Rollbacks in the last boot."""
    last_rollback: RollbackRecord | None = None
    incidents: list[Incident] = msgspec.field(default_factory=list)
    """Open at the end, the worst first."""
    memory_share: float | None = None
    """Used share of the machine's memory at the last sample."""
    damage: str = ""
    """What is wrong with the run's identity, `run.json`; empty = nothing."""
    damaged_lines: int = 0
    checkpoint: LastCheckpoint | None = None
    bundle: str | None = None
    report: PostmortemReport | None = None
    log: str = ""
    advice: list[str] = msgspec.field(default_factory=list)


def diagnose(run: RunInfo) -> Diagnosis:
    """Look at a run, live or not; changes nothing."""
    log = str(run.path / "daemon.log")
    found = Diagnosis(run=run.name, id=run.id, ending="never started", kind=run.kind, log=log)
    stopped = _read_journal(run, found)
    found.bundle, found.report = _bundle(run, found.boot)
    found.checkpoint = _checkpoint(run)
    _judge(run, found, stopped)
    found.damage = run.damage if run.damage.startswith(IDENTITY_FILE) else ""
    found.advice = list(_advice(run, found))
    return found


def _read_journal(run: RunInfo, found: Diagnosis) -> RunStopped | None:
    """Fill in what the journal holds; returns the final event of the last boot, where it has one."""
    incidents: dict[str, Incident] = {}
    stopped: RunStopped | None = None

    def damaged(_number: int, _error: Exception) -> None:
        found.damaged_lines += 1

    try:
        for event in read(run.path / EVENTS_FILE, on_bad=damaged):
            data = event.data
            found.last_event, found.last_at = event.type, event.ts
            found.round, found.epoch = event.ctx.round, event.ctx.epoch
            if isinstance(data, RunStarted):
                found.boot, found.pid, found.device = data.boot, data.pid, data.device
                found.rounds = data.rounds
                found.rollbacks, found.last_rollback, stopped = 0, None, None
                incidents.clear()  # each boot has its own
            elif isinstance(data, Incident):
                incidents[data.id] = data
            elif isinstance(data, GovernorRollback):
                found.rollbacks += 1
                found.last_rollback = _rollback(event, data)
            elif isinstance(data, SystemSample):
                found.memory_share = data.memory_used / max(1, data.memory_total)
            elif isinstance(data, RunStopped):
                stopped = data
    except FolderError:
        return None
    found.incidents = sorted((each for each in incidents.values() if each.active), key=incident_order)
    return stopped


def _rollback(event: Event, data: GovernorRollback) -> RollbackRecord:
    ctx = event.ctx
    return RollbackRecord(
        env=-1 if ctx.env is None else ctx.env,
        round=ctx.round,
        epoch=ctx.epoch,
        reason=data.reason,
        cause=data.cause,
        loss=data.loss,
    )


def _bundle(run: RunInfo, boot: str | None) -> tuple[str | None, PostmortemReport | None]:
    """The bundle of the last boot and its report."""
    for path in list_bundles(run.path / "postmortem"):
        if path.name == boot:
            try:
                return str(path), read_record(path / "report.json", PostmortemReport)
            except (OSError, WireError):
                return str(path), None
    return None, None


def _checkpoint(run: RunInfo) -> LastCheckpoint | None:
    folder = run.path / "checkpoints"
    paths = Checkpoints(folder, keep=0).all() if folder.is_dir() else []
    if not paths:
        return None
    path = paths[-1]
    try:
        at = int(path.stat().st_mtime * 1e6)
    except FileNotFoundError:
        return _checkpoint(run)  # a live daemon has just replaced it by a newer one
    try:
        trainer = msgspec.convert(load(path), _Saved).trainer
    except CheckpointError as error:
        return LastCheckpoint(path=str(path), at=at, error=str(error))
    except msgspec.ValidationError as error:
        return LastCheckpoint(path=str(path), at=at, error=f"checkpoint {path} is not of a training: {error}")
    return LastCheckpoint(path=str(path), at=at, round=trainer.round, epoch=trainer.epoch)


def _judge(run: RunInfo, found: Diagnosis, stopped: RunStopped | None) -> None:
    """Judge the end: by the journal's final event, else by the bundle, else killed.

    Who is not killed removes the connection file, on a disk that takes no last event, too.
    """
    found.pid = run.pid or found.pid
    if run.is_live:
        found.ending, found.is_stopped = "alive", is_stopped(run.pid)
        return
    if stopped is not None:
        found.state, found.stopped_by = stopped.final_state, stopped.stopped_by
    last_word = stopped or found.report
    if last_word is not None:
        found.reason, found.exit_code, found.error = last_word.reason, last_word.exit_code, last_word.error
        found.ending = {0: "in order", 130: "interrupted"}.get(last_word.exit_code, "failed")  # type: ignore[assignment]
    elif found.boot is not None:
        found.ending = "killed" if (run.path / CONNECTION_FILE).exists() else "untold"


def _advice(run: RunInfo, found: Diagnosis) -> list[str]:
    """Next steps, in order."""
    if found.is_stopped:
        return [f"let it go on: kill -CONT {found.pid}"]
    if found.kind == "published":
        return [_advice_for_loop(found)]
    if found.ending == "alive":
        if run.state == "STARTING":
            return [f"it is starting; watch it then: esper-tui {found.run}"]
        silent = time.time() - (found.last_at or 0) / 1e6
        if silent < SILENT_SECONDS:
            return [f"watch it: esper-tui {found.run}"]
        return [
            f"it has sent no event for {silent:.0f} s: kill -USR1 {found.pid} writes every thread's stack "
            f"into {found.log}"
        ]
    if found.ending == "never started":
        return [f"{found.log} may say why; start it again: {resume_command(found.run)}"]
    advice = []
    if found.damage:
        advice.append(
            f"put a copy of {run.path / IDENTITY_FILE} back; else a resumed boot gives the run a new id"
        )
    if found.ending == "untold":
        advice.append(f"free space on the disk of {run.path}, or look after it")
    if found.ending == "killed" and (found.memory_share or 0) > FULL_MEMORY_SHARE:
        advice.append(
            "the memory was full: fewer envs (envs.count) or a smaller host, and dmesg for the killer"
        )
    if found.report is not None and found.report.sick_env is not None:
        advice.append(f"env{found.report.sick_env:02d}'s weights: torch.load('{found.bundle}/sick_env.pt')")
    if found.ending == "failed":
        advice.append(f"read the traceback in {found.bundle or found.log}")
    return [*advice, _resume(found)]


def _advice_for_loop(found: Diagnosis) -> str:
    """Next step with a published run."""
    if found.ending == "alive":
        return f"watch it: esper-tui {found.run}"
    if found.ending == "failed":
        return f"read its traceback: esper-daemon replay {found.run} --type log"
    return f"publish({found.run!r}, resume=True) goes on in its journal"


def _resume(found: Diagnosis) -> str:
    command = resume_command(found.run)
    checkpoint = found.checkpoint
    if checkpoint is None:
        return f"no checkpoint was written; from the beginning again: {command}"
    if checkpoint.error is not None:
        return f"{checkpoint.error}; move it away, then: {command}"
    if found.rounds and checkpoint.round >= found.rounds and not checkpoint.epoch:
        more = resume_command(found.run, found.rounds)
        return f"all {found.rounds} rounds are done; to train more: {more}"
    return f"go on {_position(checkpoint)}: {command}"


def _position(checkpoint: LastCheckpoint) -> str:
    if checkpoint.epoch:
        return f"from epoch {checkpoint.epoch} of round {checkpoint.round}"
    return f"after round {checkpoint.round}"
