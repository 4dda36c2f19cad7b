"""A run's alerts: what its rules raise is recorded, told in the journal, carried out and sent."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from esper_overwatch.protocol.errors import FolderError, RequestError
from esper_overwatch.protocol.messages.events import Alert, AlertChange, EventSpec, LogLine, RunStarted
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.protocol.server.server import Server

from .courier import Courier
from .judge import Raised, RuleJudge
from .record import RECORD_FILE, AlertRecord
from .rules import Rule

MAX_TEXT_CHARACTERS = 2_000


class Alerts:
    """Observes a server's events by the user's rules.

    Args:
        server: not started yet.
        rules: at least one.

    Raises:
        FolderError: the record of alerts cannot be opened.
    """

    def __init__(self, server: Server, rules: Sequence[Rule]) -> None:
        self._server = server
        self._emit = server.emitter.emit
        try:
            self._record = AlertRecord(server.run.path)
        except OSError as error:
            raise FolderError(f"{server.run.path / RECORD_FILE}: cannot be used: {error.strerror}") from None
        self._courier = Courier(rules, self._record, self._emit)
        self._judge = RuleJudge(rules, server.run.id, self._raise, self._warn)
        self._has_begun = False
        server.observe(self.observe)
        server.before_end = self._courier.close

    def observe(self, spec: EventSpec, events: Sequence[Emitted]) -> None:
        """See what is published; an `Observer` of the publisher."""
        self._judge.observe(spec, events)
        if spec.cls is RunStarted and not self._has_begun:
            self._has_begun = True
            for line in self._record.waiting:
                for delivery in line.deliveries:
                    self._courier.send(delivery, line.message)

    def _raise(self, raised: Raised) -> None:
        rule = raised.rule
        alert = Alert(
            id=raised.id,
            rule=rule.name,
            change="raised",
            level=raised.level,
            title=raised.title,
            text=raised.text[:MAX_TEXT_CHARACTERS],
            when=str(rule.when),
        )
        run = self._server.run
        message = message_of(alert, run=run.name, run_id=run.id, raised=raised)
        if self._record.add(raised.id, rule.deliveries, message):
            self._emit(alert)
            for delivery in rule.deliveries:
                self._courier.send(delivery, message)
        if rule.run is not None:  # again where the same is raised again: nothing of it outlives a boot
            self._tell_run(rule, alert)

    def _tell_run(self, rule: Rule, alert: Alert) -> None:
        assert rule.run is not None
        error = ""
        try:
            self._server.submit(rule.run, f"alert {rule.name}", f"{alert.title}: {alert.text}")
        except RequestError as refused:
            error = refused.message
        change: AlertChange = "failed" if error else "sent"
        self._emit(replace(alert, change=change, action=rule.run, attempts=1, error=error))

    def _warn(self, text: str) -> None:
        self._emit(LogLine(level="WARNING", logger="alerts", message=text))


def message_of(alert: Alert, *, run: str, run_id: str, raised: Raised | None = None) -> dict[str, Any]:
    """What is sent of an alert, as JSON has it.

    Args:
        run: name of the run.
        raised: None of a test, which no run has raised.
    """
    value = None if raised is None else raised.value
    return {
        "run": run,
        "run_id": run_id,
        "host": socket.gethostname(),
        **{name: getattr(alert, name) for name in ("id", "rule", "level", "title", "text", "when")},
        "value": value if value is None or isfinite(value) else str(value),
        "round": 0 if raised is None else raised.ctx.round,
        "epoch": 0 if raised is None else raised.ctx.epoch,
        "step": None if raised is None else raised.step,
        "ts": (time.time_ns() if raised is None else raised.ns) // 1000,
    }


def trial_message(rule: Rule) -> dict[str, Any]:
    """What `esper-daemon alerts test` sends: no run has raised it."""
    alert = Alert(
        id=secrets.token_hex(8),
        rule=rule.name,
        change="raised",
        level="info",
        title=f"test of the rule {rule.name}",
        text=f"it is raised when {rule.when}",
        when=str(rule.when),
    )
    return message_of(alert, run="test", run_id="")
