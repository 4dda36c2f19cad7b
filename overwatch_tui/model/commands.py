"""Commands as the operator sees them: SENT → ACK or NACK → RUNNING → DONE or FAILED, or NO REPLY.

Those sent from here are known at once; those of other clients from the daemon's audit events.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from esper_overwatch.protocol.codec.readable import format_result
from esper_overwatch.protocol.journal.command_log import CommandLog, CommandRecord
from esper_overwatch.protocol.messages.events import (
    Lease,
    ProfilerFinished,
    ProfilerStarted,
    RunStarted,
    RunStateChanged,
    TelemetryLevel,
)

from .time_series import SECOND

NO_REPLY_MICROSECONDS = 2 * SECOND
OPEN_STATES = frozenset({"SENT", "ACK", "RUNNING", "NO REPLY"})
MAX_COMMANDS = 200
WAITS_PAUSED = "waits: the run is paused"

STATE_STYLES = {"NACK": "warning", "FAILED": "critical", "NO REPLY": "warning", "DONE": "ok"}


@dataclass
class TrackedCommand:
    """One command, from when it was sent or accepted to its end."""

    number: int
    id: str
    method: str
    params: dict[str, Any]
    state: str
    """SENT, ACK, NACK, RUNNING, DONE, FAILED or NO REPLY."""
    ts: int
    """Time at which it was sent (ours) or accepted, microseconds."""
    by: str
    rtt: float | None = None
    """Seconds until the answer; None for other people's."""
    detail: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    ended: int = 0

    @property
    def title(self) -> str:
        """The method and the parameters that are not obvious."""
        words = [str(v) for v in self.params.values() if v not in (None, "") and not isinstance(v, bool)]
        return " ".join([self.method.replace("telemetry.", ""), *words])


class Commands:
    """All commands, oldest first."""

    def __init__(self) -> None:
        self._is_paused = False
        self.lease: Lease | None = None
        """The lease that is held; None where everybody may command."""
        self._commands: dict[str, TrackedCommand] = {}
        self._log = CommandLog(max_ended=MAX_COMMANDS, partial=True)
        self._next = 1

    def copy(self) -> Commands:
        return copy.deepcopy(self)

    def newest_first(self) -> list[TrackedCommand]:
        return list(reversed(self._commands.values()))

    @property
    def latest(self) -> TrackedCommand | None:
        """This terminal's newest command, else the newest of all."""
        commands = self.newest_first()
        return next((o for o in commands if o.by == "me"), commands[0] if commands else None)

    def _add(self, command: TrackedCommand) -> TrackedCommand:
        self._commands[command.id] = command
        self._next += 1
        while len(self._commands) > MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]
        return command

    def add_sent(self, id_: str, method: str, params: dict[str, Any], ts: int) -> TrackedCommand:
        return self._add(TrackedCommand(self._next, id_, method, params, "SENT", ts, by="me"))

    def add_reply(self, id_: str, *, error: str | None, rtt: float, note: str = "") -> None:
        """Take in the answer to a command of this terminal: an error's text, or a note why it has to wait."""
        command = self._commands.get(id_)
        if command is None:
            return
        command.rtt = rtt
        if error is not None:
            command.state, command.detail = "NACK", error
            return
        if command.state in ("SENT", "NO REPLY"):
            command.state = "ACK"
        if command.state == "ACK":
            command.detail = note

    def mark_no_reply(self, id_: str, why: str) -> None:
        """Note that no answer will come."""
        command = self._commands.get(id_)
        if command is not None and command.state in ("SENT", "NO REPLY"):
            command.state, command.detail = "NO REPLY", why

    def mark_overdue(self, now: int) -> None:
        """Set NO REPLY for those that have waited too long."""
        for command in self._commands.values():
            if command.state == "SENT" and now - command.ts > NO_REPLY_MICROSECONDS:
                command.state, command.detail = "NO REPLY", "no answer in 2 s; it may still be executed"

    def mark_daemon_lost(self, why: str) -> None:
        """Fail the open commands: their daemon is gone."""
        for command in self._commands.values():
            if command.state in OPEN_STATES:
                command.state, command.detail = "FAILED", why

    def fold(self, event: object, *, ts: int) -> None:
        """Take in an audit event or an effect."""
        match event:
            case TelemetryLevel() | ProfilerStarted() if event.command in self._commands:
                command = self._commands[event.command]
                if command.state in OPEN_STATES and event.epochs:
                    command.state = "ACK" if self._is_paused else "RUNNING"
                    command.detail = WAITS_PAUSED if self._is_paused else f"{event.epochs} epochs"
            case RunStateChanged():
                self._is_paused = event.state == "PAUSED"
                for command in () if self._is_paused else self._commands.values():
                    if command.detail == WAITS_PAUSED:
                        command.state, command.detail = "RUNNING", ""
            case Lease():
                self.lease = event if event.state in ("acquired", "renewed") else None
            case RunStarted():
                self.lease = None
            case ProfilerFinished() if event.command in self._commands:
                self._commands[event.command].detail = event.error or event.path
            case _:
                record = self._log.fold(event, ts=ts)
                if record is not None:
                    self._show(record, ts)

    def _show(self, record: CommandRecord, ts: int) -> None:
        command = self._commands.get(record.id) or self._add(
            TrackedCommand(
                self._next, record.id, record.method, record.params or {}, "SENT", ts, by=_author(record)
            )
        )
        match record.state:
            case "waiting":
                command.params = record.params or {}
                if command.state in ("SENT", "NO REPLY", "NACK"):
                    command.state, command.detail = "ACK", ""
            case "refused":
                command.state, command.detail = "NACK", _message(record)
            case "running" if command.state in OPEN_STATES:
                command.state, command.detail = "RUNNING", f"{record.done} of {record.total} epochs"
            case "done":
                result = record.result or {}
                command.state, command.ended, command.result = "DONE", ts, result
                command.detail = _summary(result)
            case "failed" | "cancelled":
                command.state, command.ended = "FAILED", ts
                command.detail = _message(record) or command.detail


def _author(record: CommandRecord) -> str:
    if record.client is None:
        return "--"
    client = record.client.split("/")[0] or "?"
    return client if record.uid is None else f"{client} uid{record.uid}"


def _message(record: CommandRecord) -> str:
    return record.error["message"] if record.error is not None else ""


def _summary(result: dict[str, Any]) -> str:
    """The file that a result names, else all of its values."""
    path = result.get("path")
    if isinstance(path, str):
        return path.rsplit("/", 1)[-1]
    shown = {name.replace("_", " "): v for name, v in result.items() if isinstance(v, str | int | float)}
    return " ".join(" ".join(line.split()) for line in format_result(shown))
