"""Numbers of incidents, by hour, severity and kind, in live events and late ones.

An incident that grows worse counts once as a warning and once as critical, each in the hour of its event; one
that only calms down does not count again. The order in which events come does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import Incident

from .time_series import SECOND

HOUR = 3600 * SECOND
MAX_INCIDENTS = 4096
"""Newest incidents that are remembered and counted."""


class _Begun(NamedTuple):
    """Times at which an incident was first a warning, and first critical, microseconds; 0 = never."""

    kind: str
    warning: int = 0
    critical: int = 0

    def counts(self, severity: str) -> int:
        """The time at which it counts; 0 = it does not: a warning after a critical event adds nothing."""
        if severity == "critical":
            return self.critical
        return self.warning if not self.critical or self.warning < self.critical else 0


@dataclass
class IncidentHistory:
    """When the newest incidents began."""

    _incidents: dict[Hashable, _Begun] = field(default_factory=dict)
    """By id."""

    def copy(self) -> IncidentHistory:
        return IncidentHistory(self._incidents.copy())

    def cut(self, until: int) -> IncidentHistory:
        """Those of the events up to a time, microseconds."""
        found = {}
        for key, each in self._incidents.items():
            warning, critical = (ts if ts <= until else 0 for ts in (each.warning, each.critical))
            if warning or critical:
                found[key] = _Begun(each.kind, warning, critical)
        return IncidentHistory(found)

    def fold(self, event: Event) -> None:
        data = event.data
        if not (isinstance(data, Incident) and data.active and data.severity in ("warning", "critical")):
            return
        kind, warning, critical = self._incidents.get(data.id, _Begun(data.kind))
        if data.severity == "warning":
            warning = min(warning or event.ts, event.ts)
        else:
            critical = min(critical or event.ts, event.ts)
        self._incidents[data.id] = _Begun(kind, warning, critical)
        if len(self._incidents) > MAX_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]

    def _counted(self, severity: str, now: int, count: int) -> Iterator[tuple[int, str]]:
        """(hour, kind) of the incidents of `count` hours, of which the last one is that of `now`."""
        first = now // HOUR - count + 1
        for each in self._incidents.values():
            at = each.counts(severity) // HOUR - first
            if 0 <= at < count:
                yield at, each.kind

    def by_hour(self, severity: str, now: int, count: int) -> list[int]:
        """Incidents of each of `count` hours, the last one being that of `now`."""
        found = Counter(hour for hour, _ in self._counted(severity, now, count))
        return [found[hour] for hour in range(count)]

    def by_kind(self, severity: str, now: int, count: int) -> list[tuple[str, int]]:
        """(kind, number) in these hours, the most frequent first."""
        found = Counter(kind for _, kind in self._counted(severity, now, count))
        return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
