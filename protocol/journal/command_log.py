"""Fold a run's `command.*` events into one record per command.

The daemon answers `op.get` from it, the terminal shows it, `esper-daemon query` makes a table of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from esper_overwatch.protocol.errors import BY_CODE
from esper_overwatch.protocol.messages.events import (
    CommandAccepted,
    CommandDone,
    CommandFailed,
    CommandProgress,
    CommandRefused,
)

CommandState = Literal["refused", "waiting", "running", "done", "failed", "cancelled"]


@dataclass
class CommandRecord:
    """One command from its first event to its last."""

    number: int
    """Place among the commands, by their first events."""
    id: str
    method: str
    state: CommandState
    """`waiting` for its safe point, `running` over several epochs, or ended."""
    client: str | None = None
    """Who asked; None where the beginning of the command was not seen."""
    uid: int | None = None
    pid: int | None = None
    params: dict[str, Any] | None = None
    """None where it was refused, or its beginning was not seen."""
    reason: str | None = None
    ts: int = 0
    """When it was accepted or refused; wall time, microseconds."""
    done: int = 0
    total: int = 0
    """Progress in epochs; 0 of 0 where there is none to report."""
    ended: int | None = None
    """When it took effect or failed; wall time, microseconds."""
    seconds: float | None = None
    """From its acceptance to its effect."""
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    """`kind` and `message`."""
    key: str | None = None
    """Name of the key, of one that came over TCP."""


class CommandLog:
    """The open commands and the newest ended ones. One thread owns it.

    Args:
        max_ended: ended commands that are remembered; None = all.
        partial: whether the events may begin in the middle of a run: then a command's end makes a record even
            where its beginning was not seen.
    """

    def __init__(self, *, max_ended: int | None = None, partial: bool = False) -> None:
        self._max_ended = max_ended
        self._partial = partial
        self._numbers = count(1)
        self._open: dict[str, CommandRecord] = {}
        self._ended: dict[str, CommandRecord] = {}

    def get(self, id_: str) -> CommandRecord | None:
        """One command; None where it is not known (any more)."""
        return self._open.get(id_) or self._ended.get(id_)

    def records(self) -> list[CommandRecord]:
        """The ended ones in the order of their ends, then the open ones, the oldest first."""
        return [*self._ended.values(), *self._open.values()]

    def fold(self, event: object, *, ts: int) -> CommandRecord | None:
        """Take in an event; gives the record that it changed, None where it changed none.

        Args:
            event: any; what is not about commands changes nothing.
            ts: its wall time, microseconds.
        """
        match event:
            case CommandAccepted():
                return self._accept(event, ts)
            case CommandRefused():
                return self._refuse(event, ts)
            case CommandProgress():
                record = self._open.get(event.id)
                if record is not None:
                    record.state, record.done, record.total = "running", event.done, event.total
                return record
            case CommandDone():
                record = self._end(event.id, event.method, "done", ts)
                if record is not None:
                    record.result, record.seconds = event.result, event.seconds
                return record
            case CommandFailed():
                state: CommandState = "cancelled" if event.kind == "cancelled" else "failed"
                record = self._end(event.id, event.method, state, ts)
                if record is not None:
                    record.error = {"kind": event.kind, "message": event.message}
                return record
        return None

    def _accept(self, event: CommandAccepted, ts: int) -> CommandRecord | None:
        known = self.get(event.id)
        if known is not None and known.state != "refused":
            return None
        # One that was refused for the moment only (`overloaded`) comes again under its id.
        self._ended.pop(event.id, None)
        number = next(self._numbers) if known is None else known.number
        record = CommandRecord(number, event.id, event.method, "waiting", event.client)
        record.uid, record.pid, record.key = event.uid, event.pid, event.key
        record.params, record.reason, record.ts = event.params, event.reason, ts
        self._open[event.id] = record
        return record

    def _refuse(self, event: CommandRefused, ts: int) -> CommandRecord | None:
        if self.get(event.id) is not None:
            return None
        record = CommandRecord(next(self._numbers), event.id, event.method, "refused", event.client)
        record.uid, record.pid, record.key, record.ts = event.uid, event.pid, event.key, ts
        kind = BY_CODE[event.code].kind if event.code in BY_CODE else "internal"
        record.error = {"kind": kind, "message": event.message}
        return self._remember(record)

    def _end(self, id_: str, method: str, state: CommandState, ts: int) -> CommandRecord | None:
        record = self._open.pop(id_, None)
        if record is None:
            if not self._partial or id_ in self._ended:
                return None
            record = CommandRecord(next(self._numbers), id_, method, state)
        record.state, record.ended = state, ts
        return self._remember(record)

    def _remember(self, record: CommandRecord) -> CommandRecord:
        self._ended[record.id] = record
        while self._max_ended is not None and len(self._ended) > self._max_ended:
            del self._ended[next(iter(self._ended))]
        return record
