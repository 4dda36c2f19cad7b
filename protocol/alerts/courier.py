"""Delivers alerts: a thread for each delivery of a rule, so that a server which hangs delays only its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from esper_overwatch.protocol.messages.events import Alert, AlertChange

from .delivery import NotDelivered, deliver
from .record import AlertRecord
from .rules import Rule

logger = logging.getLogger(__name__)

MAX_WAITING = 100
"""Alerts that wait for one delivery of a rule."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""Between two attempts; each pause is twice the one before."""
KEPT_SECONDS = 24 * 3600.0
"""Since an alert was raised, after which it is given up."""
CLOSE_SECONDS = 3.0
"""That the end of a run waits for what is being sent."""
Message = dict[str, Any]


class _Route:
    """One delivery of a rule, with its thread, which begins with the first alert."""

    def __init__(self, rule: Rule, delivery: str, run: Callable[[_Route], None]) -> None:
        self.rule, self.delivery = rule, delivery
        self.queue: queue.Queue[Message | None] = queue.Queue(MAX_WAITING)
        self.thread = threading.Thread(target=run, args=(self,), name="esper-alert", daemon=True)


class Courier:
    """Sends alerts in the order in which they were raised, until each is sent or given up.

    Args:
        rules: whose deliveries there are.
        record: is told what is over.
        emit: takes `alert` events.
    """

    def __init__(self, rules: Sequence[Rule], record: AlertRecord, emit: Callable[[object], None]) -> None:
        self._record, self._emit = record, emit
        self._routes = {
            (rule.name, delivery): _Route(rule, delivery, self._follow)
            for rule in rules
            for delivery in rule.deliveries
        }
        self._closing = threading.Event()

    def send(self, delivery: str, message: Message) -> None:
        """Take an alert that is in the record; never waits."""
        route = self._routes.get((message["rule"], delivery))
        if route is None:
            self._give_up(delivery, message, 0, f"the rule has no {delivery} any more")
            return
        try:
            route.queue.put_nowait(message)
        except queue.Full:
            self._give_up(delivery, message, 0, f"{MAX_WAITING} others wait")
        if not route.thread.ident:
            route.thread.start()

    def close(self) -> None:
        """Let what waits have one attempt; what is not sent then, or not in time, waits for the next boot."""
        self._closing.set()
        end = time.monotonic() + CLOSE_SECONDS
        started = [route for route in self._routes.values() if route.thread.ident]
        for route in started:
            with suppress(queue.Full):
                route.queue.put_nowait(None)
        for route in started:
            route.thread.join(max(0.0, end - time.monotonic()))

    def _follow(self, route: _Route) -> None:
        while (message := route.queue.get()) is not None:
            try:
                self._send(route, message)
            except Exception:
                logger.exception("an alert of the rule %s was not sent", route.rule.name)

    def _send(self, route: _Route, message: Message) -> None:
        """Make attempts until one succeeds, none can, or the run ends."""
        self._record.sync()
        pause, attempts = FIRST_PAUSE_SECONDS, 0
        late_at = time.monotonic() + KEPT_SECONDS - max(0.0, time.time() - message["ts"] / 1e6)
        while True:
            attempts += 1
            try:
                deliver(route.rule, route.delivery, message)
                break
            except NotDelivered as error:
                if error.is_final or time.monotonic() > late_at:
                    self._give_up(route.delivery, message, attempts, str(error))
                    return
                if attempts == 1:
                    self._tell("failing", route.delivery, message, attempts, str(error))
            if self._closing.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        self._record.finish(message["id"], route.delivery)
        self._tell("sent", route.delivery, message, attempts)

    def _give_up(self, delivery: str, message: Message, attempts: int, error: str) -> None:
        self._record.finish(message["id"], delivery)
        self._tell("failed", delivery, message, attempts, error)

    def _tell(
        self, change: AlertChange, delivery: str, message: Message, attempts: int, error: str = ""
    ) -> None:
        told = {name: message[name] for name in ("id", "rule", "level", "title", "text", "when")}
        self._emit(Alert(change=change, action=delivery, attempts=attempts, error=error, **told))
