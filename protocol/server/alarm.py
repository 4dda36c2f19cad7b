"""Anomalies that the server and the publisher raise by themselves, for runs of both kinds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import Severity

ALARMS: tuple[tuple[str, str], ...] = (
    ("telemetry", "journal_write"),
    ("telemetry", "disk_full"),
    ("system", "disk"),
    ("trainer", "silent"),
)
"""(source, kind) of those of a training; a loop that publishes is `loop`."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check finds now, where something is wrong."""

    severity: Severity
    value: float
    hint: str
    threshold: float | None = None
    """The limit of that severity, where it has one."""


class Alarm:
    """One check of one source: emits an `anomaly` when it is raised, changes its severity, or is cleared.

    Args:
        emit: takes the event.
        source: what it is about.
        kind: what is wrong, one of `ANOMALY_GUIDES`.
    """

    def __init__(self, emit: Callable[[object], None], source: str, kind: str) -> None:
        self._emit = emit
        self._source, self._kind = source, kind
        self.finding: Finding | None = None
        """What it was raised for last; None while nothing is wrong."""
        self._since = 0

    def follow(self, finding: Finding | None, *, again: bool = False) -> None:
        """Take what the check finds now.

        Args:
            finding: None = nothing is wrong.
            again: emit an event though the severity is the same, since the value says something new.
        """
        before = self.finding
        if finding is None and before is None:
            return
        if finding is not None and before is not None and finding.severity == before.severity and not again:
            return
        if before is None:
            self._since = time.time_ns() // 1000
        self.finding = finding
        shown = finding or before
        assert shown is not None
        self._emit(
            Anomaly(
                kind=self._kind,
                source=self._source,
                severity=shown.severity,
                active=finding is not None,
                value=shown.value if finding is not None else None,
                threshold=shown.threshold,
                since=self._since,
                hint=shown.hint if finding is not None else "",
            )
        )
