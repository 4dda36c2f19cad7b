"""Feed, state and link held together: what the screen and `--once` both drive."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from protocol.items import LinkChanged, Reply, Reset
from protocol.thresholds import Threshold
from protocol.wire import Event

from .feed import Feed
from .frame import Frame
from .history import SECOND
from .link import Link
from .orders import Order
from .state import State
from .view import View

RATE_OVER_S = 10


class Session:
    """Follows one feed.

    Args:
        feed: where events come from.
        view: what the operator looks at; its env is kept within the run's.
    """

    def __init__(self, feed: Feed, view: View) -> None:
        self.feed = feed
        self.view = view
        self.state = State()
        self.link = Link()
        self.changed = True
        """Something came in that ought to be painted at once."""
        self._boot: str | None = None
        self._run: str | None = None
        self._recent: deque[int] = deque()
        """Times of the events of the last seconds, by the daemon's clock."""

    def tick(self) -> int:
        """Take in what has come; returns the number of events."""
        events = 0
        for item in self.feed.drain():
            if isinstance(item, Event):
                self.state.fold(item)
                self._recent.append(item.ts)
                events += 1
            elif isinstance(item, Reset):
                self._reset(item.reason)
            elif isinstance(item, Reply):
                self._replied(item)
            elif isinstance(item, LinkChanged):
                self.changed = True
        self.view.hush()
        self.state.orders.tick(self.feed.now())
        self.feed.fill(self.link)
        self.link.rate = self._rate()
        self.view.env = max(0, min(self.view.env, self.state.envs - 1))
        return events

    def _reset(self, reason: str) -> None:
        """A snapshot follows: of the same boot, of a new one, or of another run."""
        now = self.feed.now()
        if self._run is not None and self.feed.run_id != self._run:
            self.state = State()
            self.state.note(f"now following {reason}", now=now)
        else:
            if self._boot is not None and self.feed.boot != self._boot:
                self.state.orders.cut_off("the daemon restarted before it was carried out")
                reason = f"the daemon restarted: {reason}"
                self.view.say(reason)
            elif self._boot is not None:
                self.view.say(f"resynchronised: {reason}")
            self.state = self.state.renewed(reason, now=now)
        self._run, self._boot = self.feed.run_id, self.feed.boot
        if self.feed.thresholds:
            self.state.thresholds = msgspec.convert(self.feed.thresholds, dict[str, Threshold])
        self.changed = True

    def _replied(self, reply: Reply) -> None:
        self.changed = True
        if reply.error is not None and reply.error.kind == "no_reply":
            self.state.orders.unanswered(reply.id, str(reply.error))
        else:
            error = None if reply.error is None else str(reply.error)
            result = reply.result or {}
            note = result.get("note", "") if result.get("state") == "accepted" else ""
            self.state.orders.replied(reply.id, error=error, rtt=reply.rtt_s, note=note)

    def _rate(self) -> float | None:
        """Events per second over the last ten; None before there are any."""
        since = self.feed.now() - RATE_OVER_S * SECOND
        while self._recent and self._recent[0] < since:
            self._recent.popleft()
        return len(self._recent) / RATE_OVER_S if self.link.events else None

    def send(self, method: str, params: dict[str, Any]) -> Order:
        """Send a command; it is shown as SENT from now on."""
        id_ = self.feed.request(method, params)
        return self.state.orders.sent(id_, method, params, self.feed.now())

    def frame(self) -> Frame:
        """This moment."""
        return Frame(self.state, self.view, self.link, self.feed.now())

    def close(self) -> None:
        self.feed.close()
