"""What each command does. The trainer calls in at every epoch's end: the one safe point."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from protocol.commands import (
    CheckpointParams,
    EscalateParams,
    OpParams,
    Params,
    ParamSetParams,
    ProfilerStartParams,
    StopParams,
)
from protocol.control import Command
from protocol.errors import RequestError
from protocol.events import (
    CheckpointFailed,
    CheckpointSaved,
    ParamChanged,
    ProfilerFinished,
    ProfilerStarted,
    TelemetryLevel,
)
from protocol.server import Server

from .checkpoint import Checkpoints, Saved
from .parameters import PARAMETERS
from .telemetry.levels import Levels
from .telemetry.profiler import Profiler

logger = logging.getLogger(__name__)


class StopRun(Exception):
    """The run ends at this boundary, in order."""

    def __init__(self, reason: str, *, checkpoint: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.checkpoint = checkpoint


class WireFailed(Exception):
    """Nothing is journalled or answered any more: training on would be training in the dark."""


def takes_epochs(params: Params) -> bool:
    """Whether a command is done only when more epochs have been trained, which a paused run does not."""
    if isinstance(params, ParamSetParams):
        return PARAMETERS[params.key] == "round"
    return isinstance(params, EscalateParams | ProfilerStartParams)


class Run(Protocol):
    """What is steered and saved."""

    @property
    def round(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def episode_epochs(self) -> int: ...

    @property
    def can_intervene(self) -> bool:
        """The policy has decided on an epoch that has not begun."""

    def intervene(self, params: Params) -> dict[str, Any]:
        """Germinate or prune; raises RequestError where a gate forbids it."""

    def set_parameter(self, key: str, value: float) -> float:
        """Put a value in force; the one before it."""

    def state_dict(self) -> dict[str, Any]: ...

    def hold(self) -> None:
        """Called now and then while the run is paused."""
        ...


class Operator:
    """Carries out accepted commands at epoch boundaries and answers with `command.done` or `.failed`.

    Args:
        run: what is steered and saved.
        server: where commands come from and events go to.
        checkpoints: where checkpoints are kept.
        levels: what is collected.
        traces: folder of the profiler's traces.

    Attributes:
        profiler: records on command.
    """

    def __init__(
        self, run: Run, server: Server, checkpoints: Checkpoints, levels: Levels, traces: Path
    ) -> None:
        self._run = run
        self._server = server
        self._checkpoints = checkpoints
        self._levels = levels
        self.profiler = Profiler(traces, self._profiler_tells)
        self._stop: StopRun | None = None
        self._stop_after_round: Command | None = None
        self._stopping: list[Command] = []
        self._paused = False
        self._escalation_asked = False
        self._escalations: dict[str, Command] = {}
        self._profiling: Command | None = None
        self._for_next_epoch: list[Command] = []
        self._for_next_round: list[Command] = []
        self._actions: dict[str, Callable[[Command], None]] = {
            "pause": self._pause,
            "resume": self._resume,
            "checkpoint": self._checkpoint,
            "stop": self._stop_command,
            "telemetry.escalate": self._escalate,
            "profiler.start": self._profiler_start,
            "profiler.stop": self._profiler_stop,
            "param.set": self._set_parameter,
            "seed.germinate": self._intervene,
            "seed.prune": self._intervene,
            "op.cancel": self._cancel,
        }

    # --- from outside the loop ---------------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """End the run at the next boundary with a checkpoint (signals); safe in a signal handler."""
        self._stop = StopRun(reason, checkpoint=True)
        self._server.set_state("STOPPING", reason)

    def request_escalation(self) -> None:
        """Collect DEBUG for the next epochs (SIGUSR2); safe in a signal handler."""
        self._escalation_asked = True

    @property
    def stops_after_round(self) -> str | None:
        """Why no further round begins, or None."""
        return None if self._stop_after_round is None else f"stop by {self._stop_after_round.client}"

    # --- at the boundaries -------------------------------------------------------------------------

    def at_epoch_end(self) -> None:
        """Carry out what waits; while paused, stay here.

        Raises:
            StopRun: the run is to end now.
            WireFailed: the I/O thread has ended.
        """
        if self._server.error is not None:
            raise WireFailed(self._server.error)
        self._tell_progress()
        waited, self._for_next_epoch = self._for_next_epoch, []
        for command in waited:
            self._intervene(command)
        self._carry_out()
        while self._paused and self._stop is None:
            self._server.mailbox.wait(0.25)
            self._server.beat(self._run.round, self._run.epoch)
            self._run.hold()
            self._carry_out()
        if self._stop is not None:
            raise self._stop

    def at_round_begin(self) -> None:
        """Put in force what waited for a new episode."""
        waited, self._for_next_round = self._for_next_round, []
        for command in waited:
            self._change(command)

    def _tell_progress(self) -> None:
        """For each command that takes longer than an epoch, in at most 20 steps."""
        reached = []
        for command in self._escalations.values():
            assert isinstance(command.params, EscalateParams)
            left = self._levels.left(command.id)
            if left is not None:
                reached.append((command, command.params.epochs - left, command.params.epochs))
        if self._profiling is not None:
            assert isinstance(self._profiling.params, ProfilerStartParams)
            reached.append((self._profiling, self.profiler.recorded, self._profiling.params.epochs))
        reached += [(command, self._run.epoch, self._run.episode_epochs) for command in self._stopping]
        for command, done, total in reached:
            if done and done % max(1, total // 20) == 0:
                self._server.progress(command, done, total)

    def levels_changed(self, changes: list[TelemetryLevel]) -> None:
        """Tell what changed, and finish the escalations whose epochs are over."""
        for change in changes:
            self._server.emitter.emit(change)
            if change.epochs is None and change.command in self._escalations:
                command = self._escalations.pop(change.command)
                self._server.done(command, {"level": change.level})

    def _profiler_tells(self, event: ProfilerStarted | ProfilerFinished) -> None:
        self._server.emitter.emit(event)
        if isinstance(event, ProfilerStarted) or self._profiling is None:
            return
        command, self._profiling = self._profiling, None
        if event.error is None:
            told = {k: v for k, v in vars(event).items() if k not in ("command", "error")}
            self._server.done(command, told)
        else:
            self._server.failed(command, "internal", event.error)

    def save(self, reason: str, *, tag: str = "", command: str | None = None, best: bool = False) -> Saved:
        """Write a checkpoint and say so.

        Raises:
            OSError: the disk refused; said in `checkpoint.failed`, older checkpoints are intact.
        """
        begin = time.perf_counter()
        in_episode = self._run.epoch or None
        try:
            saved = self._checkpoints.save(
                self._run.state_dict(), round=self._run.round, epoch=in_episode, tag=tag, best=best
            )
        except OSError as error:
            text = f"{error.strerror or error}"
            self._server.emitter.emit(
                CheckpointFailed(
                    path=str(self._checkpoints.folder), error=text, reason=reason, command=command
                )
            )
            logger.error("checkpoint (%s) failed: %s; the ones before it are intact", reason, text)
            raise
        self._server.emitter.emit(
            CheckpointSaved(
                path=str(saved.path),
                bytes=saved.bytes,
                seconds=time.perf_counter() - begin,
                reason=reason,
                command=command,
            )
        )
        return saved

    def save_or_say(self, reason: str, *, best: bool = False) -> None:
        """Like `save`, for checkpoints that nobody waits for: a refusal has been told, the run goes on."""
        with contextlib.suppress(OSError):
            self.save(reason, best=best)

    def close(self, *, failed: str | None = None) -> None:
        """Answer every command that is still open: the stops are done, the others will not be."""
        self.profiler.stop()
        for command in self._stopping:
            if failed is None:
                self._server.done(command, {"stopped": True})
            else:
                self._server.failed(command, "internal", failed)
        open_ones = [
            *self._escalations.values(),
            *([self._profiling] if self._profiling else []),
            *self._for_next_epoch,
            *self._for_next_round,
        ]
        for command in [*open_ones, *self._server.mailbox.poll()]:
            self._server.failed(command, "cancelled", "the run ended before it was carried out")

    # --- the commands ------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        if self._escalation_asked:
            self._escalation_asked = False
            self._escalate_by_signal()
        waiting = self._server.mailbox.poll()
        while waiting:
            command = waiting.pop(0)
            cancel = next(
                (c for c in waiting if isinstance(c.params, OpParams) and c.params.op == command.id), None
            )
            if cancel is None:
                self._actions[command.method](command)
            else:
                waiting.remove(cancel)
                self._server.failed(command, "cancelled", f"cancelled by {cancel.client}")
                self._server.done(cancel, {"op": command.id})

    def _pause(self, command: Command) -> None:
        self._paused = True
        self._server.set_state("PAUSED", f"by {command.client}")
        self._server.done(command, {"round": self._run.round, "epoch": self._run.epoch})

    def _resume(self, command: Command) -> None:
        self._paused = False
        self._server.set_state("TRAINING", f"by {command.client}")
        self._server.done(command, {"round": self._run.round, "epoch": self._run.epoch})

    def _checkpoint(self, command: Command) -> None:
        assert isinstance(command.params, CheckpointParams)
        try:
            saved = self.save("command", tag=command.params.tag, command=command.id)
        except OSError as error:
            self._server.failed(command, "internal", f"{self._checkpoints.folder}: {error.strerror}")
            return
        self._server.done(command, {"path": str(saved.path), "bytes": saved.bytes})

    def _stop_command(self, command: Command) -> None:
        assert isinstance(command.params, StopParams)
        self._stopping.append(command)
        if command.params.mode == "after_round":
            self._stop_after_round = command
            if self._paused:
                self._paused = False
                self._server.set_state("TRAINING", f"finishes its round, by {command.client}")
            return
        reason = f"stop by {command.client}"
        self._stop = StopRun(reason, checkpoint=command.params.checkpoint)
        self._server.set_state("STOPPING", reason)

    def _escalate_by_signal(self) -> None:
        asked = EscalateParams()
        try:
            changes = self._levels.escalate(asked.level, asked.epochs, reason="SIGUSR2")
        except ValueError as error:
            logger.warning("SIGUSR2: %s", error)
            return
        self.levels_changed(changes)

    def _escalate(self, command: Command) -> None:
        assert isinstance(command.params, EscalateParams)
        params = command.params
        try:
            changes = self._levels.escalate(
                params.level,
                params.epochs,
                env=params.env,
                reason=f"by {command.client}",
                command=command.id,
            )
        except ValueError as error:
            self._server.failed(command, "invalid_params", str(error))
            return
        self._escalations[command.id] = command
        self.levels_changed(changes)

    def _profiler_start(self, command: Command) -> None:
        assert isinstance(command.params, ProfilerStartParams)
        try:
            self.profiler.start(
                command.params.epochs, command=command.id, with_update=command.params.with_update
            )
        except ValueError as error:
            self._server.failed(command, "busy", str(error))
            return
        self._profiling = command

    def _profiler_stop(self, command: Command) -> None:
        if not self.profiler.active:
            self._server.failed(command, "not_found", "the profiler is not recording")
            return
        self.profiler.stop()
        self._server.done(command, {"stopped": True})

    def _set_parameter(self, command: Command) -> None:
        assert isinstance(command.params, ParamSetParams)
        if PARAMETERS[command.params.key] == "round":
            self._for_next_round.append(command)
        else:
            self._change(command)

    def _change(self, command: Command) -> None:
        params = command.params
        assert isinstance(params, ParamSetParams)
        old = self._run.set_parameter(params.key, params.value)
        self._server.emitter.emit(
            ParamChanged(
                key=params.key,
                old=old,
                new=params.value,
                by=command.client,
                uid=command.uid,
                pid=command.pid,
                command=command.id,
            )
        )
        self._server.done(command, {"key": params.key, "old": old, "new": params.value})

    def _intervene(self, command: Command) -> None:
        """On the seeds of the coming epoch; behind an episode's last one, on those of the next episode."""
        if not self._run.can_intervene:
            if self._paused:
                reason = "the run is paused behind the last epoch of its episode; resume it, then ask again"
                self._server.failed(command, "wrong_state", reason)
            else:
                self._for_next_epoch.append(command)
            return
        try:
            result = self._run.intervene(command.params)
        except RequestError as error:
            self._server.failed(command, error.kind, error.message)
            return
        self._server.done(command, result)

    def _cancel(self, command: Command) -> None:
        """Take back what has not come about: nothing that has been done is undone but an escalation."""
        assert isinstance(command.params, OpParams)
        op, reason = command.params.op, f"cancelled by {command.client}"
        target = self._withdraw(op, reason)
        if target is None:
            self._server.failed(command, "not_found", f"no open command {op}; op.list tells them")
            return
        self._server.failed(target, "cancelled", reason)
        self._server.done(command, {"op": op})

    def _withdraw(self, op: str, reason: str) -> Command | None:
        """The open command of this id, whose effect has been stopped; None where there is none."""
        if op in self._escalations:
            command = self._escalations.pop(op)
            self.levels_changed(self._levels.cancel(op, reason))
            return command
        if self._profiling is not None and self._profiling.id == op:
            command, self._profiling = self._profiling, None
            self.profiler.cancel(reason)
            return command
        for waiting in (self._for_next_epoch, self._for_next_round, self._stopping):
            for command in waiting:
                if command.id == op:
                    waiting.remove(command)
                    self._stop_after_round = self._stopping[-1] if self._stopping else None
                    return command
        return None
