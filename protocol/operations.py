"""What became of the commands: each accepted one is an operation, known by its request's id.

A projection of the `command.*` events, kept by the I/O thread: what `op.get` and `op.list` tell.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from .events import CommandAccepted, CommandDone, CommandFailed, CommandProgress

OperationState = Literal["waiting", "running", "done", "failed", "cancelled"]
ENDED = 256
"""Ended operations that are remembered."""


@dataclass
class Operation:
    """One command from its acceptance to its end."""

    op: str
    method: str
    params: dict[str, Any]
    client: str
    uid: int | None
    pid: int | None
    accepted: int
    """Wall time, microseconds; so are the others."""
    state: OperationState = "waiting"
    """`waiting` for its safe point, `running` over several epochs, or ended."""
    done: int = 0
    total: int = 0
    """Progress in epochs; 0 of 0 where there is none to tell."""
    ended: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    """`kind` and `message`."""


class Operations:
    """The open ones and the newest ended ones. One thread owns it."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Operation] = OrderedDict()
        self._ended: OrderedDict[str, Operation] = OrderedDict()

    def note(self, event: object, ts: int) -> None:
        """Take in an event; those that are not about commands are none of its business.

        Args:
            ts: wall time of the event, microseconds.
        """
        if isinstance(event, CommandAccepted):
            if event.id not in self._open and event.id not in self._ended:
                self._open[event.id] = Operation(
                    event.id, event.method, event.params, event.client, event.uid, event.pid, ts
                )
        elif isinstance(event, CommandProgress):
            if event.id in self._open:
                operation = self._open[event.id]
                operation.state, operation.done, operation.total = "running", event.done, event.total
        elif isinstance(event, CommandDone):
            self._end(event.id, "done", ts, result=event.result)
        elif isinstance(event, CommandFailed):
            state: OperationState = "cancelled" if event.kind == "cancelled" else "failed"
            self._end(event.id, state, ts, error={"kind": event.kind, "message": event.message})

    def _end(self, id_: str, state: OperationState, ts: int, **outcome: Any) -> None:
        operation = self._open.pop(id_, None)
        if operation is None:
            return
        self._ended[id_] = dataclasses.replace(operation, state=state, ended=ts, **outcome)
        while len(self._ended) > ENDED:
            self._ended.popitem(last=False)

    def get(self, id_: str) -> dict[str, Any] | None:
        """One operation as a plain dict; None where it is not known (any more)."""
        operation = self._open.get(id_) or self._ended.get(id_)
        return None if operation is None else dataclasses.asdict(operation)

    def list(self) -> list[dict[str, Any]]:
        """The ended ones, then the open ones, each the oldest first."""
        return [dataclasses.asdict(one) for one in (*self._ended.values(), *self._open.values())]
