"""Execution of commands. The hooks call it at the safe points: between two epochs or two rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import (
    CheckpointParams,
    EscalateParams,
    OpParams,
    Params,
    ParamSetParams,
    ProfilerStartParams,
    SeedGerminateParams,
    SeedPruneParams,
    StopParams,
)
from esper_overwatch.protocol.messages.events import (
    STOP_BY,
    ParamChanged,
    ProfilerFinished,
    ProfilerStarted,
)
from esper_overwatch.protocol.server.mailbox import Command
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.hooks import StopRun
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from esper_overwatch.trainer.telemetry.profiler import Profiler

from .checkpoint_saver import CheckpointSaver
from .live_parameters import PARAMETERS
from .run_control import RunControl

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
"""Most seconds that the end waits for a request which is being answered."""

Result = dict[str, Any]
Handler = Callable[[Command, Any], Result | None]
"""Executes a command with its parameters.

Returns the result where the command has taken effect, None where it stays open; a RequestError fails it.
"""


class CommandRunner:
    """Executes accepted commands at the safe points and answers with `command.done` or `.failed`.

    Args:
        run: what commands read and change.
        server: where commands come from and events go to.
        saver: saves checkpoints.
        plan: what is collected.
        traces: folder of the profiler's traces.

    Attributes:
        profiler: records on command.
        handlers: by method, one for each command that `METHODS` executes `at` an epoch's end.
    """

    def __init__(
        self, run: RunControl, server: Server, saver: CheckpointSaver, plan: CollectionPlan, traces: Path
    ) -> None:
        self._run = run
        self._server = server
        self._saver = saver
        self._plan = plan
        self.profiler = Profiler(traces, self._on_profiler_event)
        self._stop: StopRun | None = None
        self._must_stop = False
        self._stop_after_round: Command | None = None
        self._stopping: list[Command] = []
        self._paused = False
        self._escalation_asked = False
        self._escalations: dict[str, Command] = {}
        self._profiling: Command | None = None
        self._for_next_epoch: list[Command] = []
        self._for_next_round: list[Command] = []
        self.handlers: dict[str, Handler] = {
            "pause": self._pause,
            "resume": self._resume,
            "checkpoint": self._checkpoint,
            "stop": self._stop_run,
            "telemetry.escalate": self._escalate,
            "profiler.start": self._start_profiler,
            "profiler.stop": self._stop_profiler,
            "param.set": self._set_parameter,
            "seed.germinate": self._intervene,
            "seed.prune": self._intervene,
            "op.cancel": self._cancel,
        }

    def request_stop(self, reason: str) -> None:
        """End the run at the next boundary with a checkpoint (signals); safe in a signal handler."""
        self._stop_for_good(StopRun(reason, checkpoint=True))

    def stop_deleted(self) -> None:
        """End the run, whose folder was deleted, at the next boundary; safe in any thread."""
        stop = StopRun("its folder was deleted", checkpoint=False)
        stop.failed = "deleted"
        self._stop_for_good(stop)

    def _stop_for_good(self, stop: StopRun) -> None:
        """No command puts another stop in its place."""
        self._must_stop, self._stop = True, stop
        self._server.set_state("STOPPING", stop.reason)

    def request_escalation(self) -> None:
        """Collect DEBUG for the next epochs (SIGUSR2); safe in a signal handler."""
        self._escalation_asked = True

    @property
    def stops_after_round(self) -> str | None:
        """Why no further round begins, or None."""
        return None if self._stop_after_round is None else STOP_BY + self._stop_after_round.author

    @property
    def is_idle(self) -> bool:
        """True if `at_epoch_end` would do nothing now, and no epoch is being profiled."""
        waiting = (self._for_next_epoch, self._escalations, self._stopping, self._server.mailbox)
        asked = self._stop is not None or self._paused or self._escalation_asked or self.profiler.active
        return not asked and not any(len(commands) for commands in waiting)

    def at_epoch_end(self, paused: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Execute the commands that wait; while paused, stay here. Called when a round has ended, too.

        Args:
            paused: entered for as long as the run is paused.

        Raises:
            StopRun: the run is to end now.
        """
        self._finish_escalations()
        self._report_progress()
        waited, self._for_next_epoch = self._for_next_epoch, []
        for command in waited:
            self._execute(command, self._intervene)
        self._execute_waiting()
        self._stop_if_asked()
        if self._paused:
            with paused():
                self._wait_for_resume()

    def _wait_for_resume(self) -> None:
        while self._paused:
            self._server.mailbox.wait(0.25)
            self._server.show_life()
            self._run.keep_waiting()
            self._execute_waiting()
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Save, then end the run. A command's stop that cannot save fails, and the run goes on.

        A signal's stop ends the run in any case: who sent it sends the next one without mercy.
        """
        stop = self._stop
        if stop is None:
            return
        if stop.checkpoint:
            try:
                self._saver.save(f"stop: {stop.reason}")
            except OSError as error:
                if not self._must_stop:
                    self._stop = None
                    self._fail_stops(error.strerror or str(error))
                    return
                stop.failed = error.strerror or str(error)
        self._server.set_state("STOPPING", stop.reason)
        raise stop

    def _fail_stops(self, why: str) -> None:
        folder = self._saver.checkpoints.folder
        message = (
            f"no checkpoint could be saved ({folder}: {why}), the run goes on; stop without one to end it"
        )
        for command in self._stopping:
            self._server.failed(command, "internal", message)
        self._stopping, self._stop_after_round = [], None

    def goes_on_after_round(self) -> bool:
        """True if another round may begin; a stop behind this one fails where the round was not saved."""
        command = self._stop_after_round
        if command is None:
            return True
        assert isinstance(command.params, StopParams)
        self._saver.wait()
        if self._saver.error is None or not command.params.checkpoint:
            return False
        self._fail_stops(self._saver.error)
        return True

    def at_round_begin(self) -> None:
        """Put in force what waited for a new episode."""
        waited, self._for_next_round = self._for_next_round, []
        for command in waited:
            self._execute(command, self._change_parameter)
        self._count_kept()

    def close(self, *, failed: str | None = None) -> None:
        """Answer every command that is still open: the stops are done, the others will not be.

        The run's state is STOPPING by now, in which the trainer is sent no further ones.
        """
        self.profiler.stop()
        self._finish_escalations()
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
        self._cancel_all([*open_ones, *self._server.mailbox.poll()])
        self._server.flush(FLUSH_SECONDS)
        self._cancel_all(self._server.mailbox.poll())  # what was accepted while the state changed

    def _cancel_all(self, commands: list[Command]) -> None:
        for command in commands:
            self._server.failed(command, "cancelled", "the run ended before it was executed")

    def _execute_waiting(self) -> None:
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
                self._execute(command, self.handlers[command.method])
            else:
                waiting.remove(cancel)
                self._server.failed(command, "cancelled", f"cancelled by {cancel.client}")
                self._server.done(cancel, {"op": command.id})
        self._count_kept()

    def _count_kept(self) -> None:
        """Those that wait for a later boundary have no room in the mailbox beside them."""
        self._server.mailbox.num_kept = len(self._for_next_epoch) + len(self._for_next_round)

    def _execute(self, command: Command, handler: Handler) -> None:
        try:
            result = handler(command, command.params)
        except RequestError as error:
            self._server.failed(command, error.kind, error.message)
            return
        if result is not None:
            self._server.done(command, result)

    def _report_progress(self) -> None:
        """For each command that takes longer than an epoch, in at most 40 steps; the end tells its own."""
        reached = []
        for command in self._escalations.values():
            assert isinstance(command.params, EscalateParams)
            left = self._plan.epochs_left(command.id)
            if left is not None:
                reached.append((command, command.params.epochs - left, command.params.epochs))
        if self._profiling is not None:
            assert isinstance(self._profiling.params, ProfilerStartParams)
            reached.append((self._profiling, self.profiler.recorded, self._profiling.params.epochs))
        reached += [(command, self._run.epoch, self._run.episode_epochs) for command in self._stopping]
        for command, done, total in reached:
            if done and (done == total or done % max(1, total // 20) == 0):
                self._server.progress(command, done, total)

    def _finish_escalations(self) -> None:
        for id_, level in self._plan.take_ended().items():
            command = self._escalations.pop(id_, None)
            if command is not None:
                asked = command.params
                assert isinstance(asked, EscalateParams)
                self._server.progress(command, asked.epochs, asked.epochs)
                here = f"round {self._run.round} epoch {self._run.epoch or self._run.episode_epochs}"
                told = {"collected": asked.level, "epochs": asked.epochs, "until": here}
                self._server.done(command, {**told, "level_after": level})

    def _on_profiler_event(self, event: ProfilerStarted | ProfilerFinished) -> None:
        self._server.emitter.emit(event)
        if isinstance(event, ProfilerStarted) or self._profiling is None:
            return
        command, self._profiling = self._profiling, None
        if event.error is None:
            assert isinstance(command.params, ProfilerStartParams)
            self._server.progress(command, event.epochs, command.params.epochs)
            result = {k: v for k, v in vars(event).items() if k not in ("command", "error")}
            self._server.done(command, result)
        else:
            self._server.failed(command, "internal", event.error)

    def _pause(self, command: Command, _params: Params) -> Result:
        self._paused = True
        self._server.set_state("PAUSED", f"by {command.client}")
        return self._here()

    def _resume(self, command: Command, _params: Params) -> Result:
        self._paused = False
        self._server.set_state("TRAINING", f"by {command.client}")
        return self._here()

    def _here(self) -> Result:
        """Round, and epochs finished in it: between two rounds all of the one that has ended."""
        return {"round": self._run.round, "epoch": self._run.epoch or self._run.episode_epochs}

    def _checkpoint(self, command: Command, params: CheckpointParams) -> Result:
        try:
            saved = self._saver.save("command", tag=params.tag, command=command.id)
        except OSError as error:
            folder = self._saver.checkpoints.folder
            raise RequestError("internal", f"{folder}: {error.strerror}") from None
        return {"path": str(saved.path), "bytes": saved.bytes}

    def _stop_run(self, command: Command, params: StopParams) -> None:
        self._stopping.append(command)
        if params.mode == "after_round":
            self._stop_after_round = command
            if self._paused:
                self._paused = False
                self._server.set_state("TRAINING", f"finishes its round, by {command.client}")
            return
        if not self._must_stop:
            self._stop = StopRun(STOP_BY + command.author, checkpoint=params.checkpoint)

    def _escalate_by_signal(self) -> None:
        asked = EscalateParams()
        try:
            self._plan.escalate(asked.level, asked.epochs, reason="SIGUSR2")
        except ValueError as error:
            logger.warning("SIGUSR2: %s", error)

    def _escalate(self, command: Command, params: EscalateParams) -> None:
        reason = f"by {command.client}"
        try:
            self._plan.escalate(
                params.level, params.epochs, env=params.env, reason=reason, command=command.id
            )
        except ValueError as error:
            raise RequestError("invalid_params", str(error)) from None
        self._escalations[command.id] = command

    def _start_profiler(self, command: Command, params: ProfilerStartParams) -> None:
        try:
            self.profiler.start(params.epochs, command=command.id, with_update=params.with_update)
        except ValueError as error:
            raise RequestError("busy", str(error)) from None
        self._profiling = command

    def _stop_profiler(self, _command: Command, _params: Params) -> Result:
        if not self.profiler.active:
            raise RequestError("not_found", "the profiler is not recording")
        self.profiler.stop()
        return {"stopped": True}

    def _set_parameter(self, command: Command, params: ParamSetParams) -> Result | None:
        if PARAMETERS[params.key] != "round":
            return self._change_parameter(command, params)
        self._for_next_round.append(command)
        return None

    def _change_parameter(self, command: Command, params: ParamSetParams) -> Result:
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
        return {"key": params.key, "old": old, "new": params.value}

    def _intervene(self, command: Command, params: SeedGerminateParams | SeedPruneParams) -> Result | None:
        """Intervene on the seeds of the coming epoch; after an episode's last one, on those of the next
        episode."""
        if self._run.can_intervene:
            return self._run.intervene(params, command.id)
        if self._paused:
            reason = "the run is paused behind the last epoch of its episode; resume it, then ask again"
            raise RequestError("wrong_state", reason)
        self._for_next_epoch.append(command)
        return None

    def _cancel(self, command: Command, params: OpParams) -> Result:
        """Take back a command without an effect yet; of those that have one, only an escalation ends."""
        op, reason = params.op, f"cancelled by {command.client}"
        target = self._withdraw(op, reason)
        if target is None:
            raise RequestError("not_found", f"no open command {op}; op.list lists them")
        self._server.failed(target, "cancelled", reason)
        return {"op": op}

    def _withdraw(self, op: str, reason: str) -> Command | None:
        """The open command of this id, whose effect has been stopped; None where there is none."""
        if op in self._escalations:
            command = self._escalations.pop(op)
            self._plan.cancel(op, reason)
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
