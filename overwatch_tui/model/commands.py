"""Commands as the operator sees them: SENT → ACK or NACK → RUNNING → DONE or FAILED, or NO REPLY.

Our own are known from the moment they are sent; those of others from the daemon's audit events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protocol.events import (
    CommandAccepted,
    CommandDone,
    CommandFailed,
    CommandProgress,
    CommandRefused,
    ProfilerFinished,
    ProfilerStarted,
    TelemetryLevel,
)

from .history import SECOND

NO_REPLY_AFTER = 2 * SECOND
OPEN = frozenset({"SENT", "ACK", "RUNNING", "NO REPLY"})
KEEP = 200

SEVERITY = {"NACK": "warning", "FAILED": "critical", "NO REPLY": "warning", "DONE": "ok"}


@dataclass
class Order:
    """One command."""

    number: int
    id: str
    method: str
    params: dict[str, Any]
    state: str
    ts: int
    """When it was sent (ours) or accepted; microseconds."""
    by: str
    rtt: float | None = None
    """Seconds until the answer; None for other people's."""
    detail: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    ended: int = 0

    @property
    def title(self) -> str:
        """The method and the parameters that are not obvious."""
        words = [str(v) for v in self.params.values() if v not in (None, "", True)]
        return " ".join([self.method.replace("telemetry.", ""), *words])


class Orders:
    """All commands, oldest first."""

    def __init__(self) -> None:
        self._orders: dict[str, Order] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._orders)

    def get(self, id_: str) -> Order | None:
        return self._orders.get(id_)

    def newest_first(self) -> list[Order]:
        return list(reversed(self._orders.values()))

    @property
    def latest(self) -> Order | None:
        """The newest of ours, else the newest of all."""
        orders = self.newest_first()
        return next((o for o in orders if o.by == "me"), orders[0] if orders else None)

    def _add(self, order: Order) -> Order:
        self._orders[order.id] = order
        self._next += 1
        while len(self._orders) > KEEP:
            del self._orders[next(iter(self._orders))]
        return order

    # --- our side ----------------------------------------------------------------------------------

    def sent(self, id_: str, method: str, params: dict[str, Any], ts: int) -> Order:
        return self._add(Order(self._next, id_, method, params, "SENT", ts, by="me"))

    def replied(self, id_: str, *, error: str | None, rtt: float, note: str = "") -> None:
        """The answer to one of ours; `error` is its text, `note` why an accepted one will have to wait."""
        order = self._orders.get(id_)
        if order is None:
            return
        order.rtt = rtt
        if error is not None:
            order.state, order.detail = "NACK", error
            return
        if order.state in ("SENT", "NO REPLY"):
            order.state = "ACK"
        if order.state == "ACK":
            order.detail = note

    def unanswered(self, id_: str, why: str) -> None:
        """Nothing will come any more for this one."""
        order = self._orders.get(id_)
        if order is not None and order.state in ("SENT", "NO REPLY"):
            order.state, order.detail = "NO REPLY", why

    def tick(self, now: int) -> None:
        """Say NO REPLY of those that have waited too long."""
        for order in self._orders.values():
            if order.state == "SENT" and now - order.ts > NO_REPLY_AFTER:
                order.state, order.detail = "NO REPLY", "no answer in 2 s; it may still be carried out"

    def cut_off(self, why: str) -> None:
        """The daemon that had the open ones is gone."""
        for order in self._orders.values():
            if order.state in OPEN:
                order.state, order.detail = "FAILED", why

    # --- the daemon's side -------------------------------------------------------------------------

    def fold(self, event: object, *, ts: int) -> None:
        """Take in an audit event or an effect."""
        match event:
            case CommandAccepted():
                order = self._orders.get(event.id) or self._add(
                    Order(self._next, event.id, event.method, event.params, "ACK", ts, by=_author(event))
                )
                order.params = event.params
                if order.state in ("SENT", "NO REPLY"):
                    order.state, order.detail = "ACK", ""
            case CommandRefused():
                order = self._orders.get(event.id) or self._add(
                    Order(self._next, event.id, event.method, {}, "NACK", ts, by=_author(event))
                )
                order.state, order.detail = "NACK", event.message
            case CommandDone():
                self._end(event.id, event.method, "DONE", _summary(event.result), ts)
                if (done := self._orders.get(event.id)) is not None:
                    done.result = event.result
            case CommandFailed():
                self._end(event.id, event.method, "FAILED", event.message, ts)
            case CommandProgress() if event.id in self._orders:
                order = self._orders[event.id]
                if order.state in OPEN:
                    order.state, order.detail = "RUNNING", f"{event.done} of {event.total} epochs"
            case TelemetryLevel() | ProfilerStarted() if event.command in self._orders:
                order = self._orders[event.command]
                if order.state in OPEN and event.epochs:
                    order.state, order.detail = "RUNNING", f"{event.epochs} epochs"
            case ProfilerFinished() if event.command in self._orders:
                self._orders[event.command].detail = event.error or event.path

    def _end(self, id_: str, method: str, state: str, detail: str, ts: int) -> None:
        order = self._orders.get(id_)
        if order is None:
            order = self._add(Order(self._next, id_, method, {}, state, ts, by="--"))
        order.state, order.ended = state, ts
        order.detail = detail or ("" if state == "DONE" else order.detail)


def _author(event: CommandAccepted | CommandRefused) -> str:
    client = event.client.split("/")[0] or "?"
    return client if event.uid is None else f"{client} uid{event.uid}"


def _summary(result: dict[str, Any]) -> str:
    """The one value of a result that tells most."""
    path = result.get("path")
    if isinstance(path, str):
        return path.rsplit("/", 1)[-1]
    return " ".join(f"{k} {v}" for k, v in result.items() if isinstance(v, str | int | float))
