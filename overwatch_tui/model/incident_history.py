"""Numbers of incidents, by hour, severity and kind, in live events and late ones.

An incident that grows worse counts once as a warning and once as critical, each in the hour of its event; one
that only calms down does not count again. The order in which events come does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import Incident

from .time_series import SECOND

HOUR = 3600 * SECOND
MAX_HOURS = 168
"""A week."""
MAX_INCIDENTS = 4096
"""Newest incidents that are remembered, so that an event that comes twice counts once."""
MAX_KINDS = 64
OTHER = "other"
"""Kind that counts all kinds beyond the limit."""


class _Counted(NamedTuple):
    """Times at which an incident was first a warning, and first critical, microseconds; 0 = never."""

    kind: str
    warning: int = 0
    critical: int = 0

    def counted(self, until: int | None = None) -> Counter[tuple[int, str, str]]:
        """Counts of the events up to `until` (None = all): a warning after a critical event adds nothing."""
        found: Counter[tuple[int, str, str]] = Counter()
        for severity, ts, other in (
            ("warning", self.warning, self.critical),
            ("critical", self.critical, 0),
        ):
            if ts and (not other or ts < other) and (until is None or ts <= until):
                found[ts // HOUR, severity, self.kind] = 1
        return found


@dataclass
class IncidentHistory:
    """Counts of the newest week."""

    _counts: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    """Numbers by (hour since 1970, severity, kind)."""
    _incidents: dict[Hashable, _Counted] = field(default_factory=dict)
    """Incidents by id."""
    _kinds: set[str] = field(default_factory=set)
    newest: int = 0
    """The newest hour that holds one."""

    def copy(self) -> IncidentHistory:
        return IncidentHistory(self._counts.copy(), self._incidents.copy(), self._kinds.copy(), self.newest)

    def cut(self, until: int) -> IncidentHistory:
        """Counts of the events up to a time, microseconds."""
        last = until // HOUR
        found = Counter({key: number for key, number in self._counts.items() if key[0] < last})
        kept = {}
        for key, each in self._incidents.items():
            if min(each.warning or each.critical, each.critical or each.warning) > until:
                continue
            warning, critical = (ts if ts <= until else 0 for ts in (each.warning, each.critical))
            kept[key] = each._replace(warning=warning, critical=critical)
            found.update({hour: 1 for hour in each.counted(until) if hour[0] == last})
        kinds = {kind for _, _, kind in found} | {each.kind for each in kept.values()}
        return IncidentHistory(found, kept, kinds, max((hour for hour, _, _ in found), default=0))

    def fold(self, event: Event) -> None:
        data = event.data
        if isinstance(data, Incident) and data.active and data.severity in ("warning", "critical"):
            self._add(data.id, data.kind, data.severity, event.ts)

    def _add(self, key: Hashable, kind: str, severity: str, ts: int) -> None:
        if kind not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                kind = OTHER
            self._kinds.add(kind)
        before = self._incidents.get(key, _Counted(kind))
        if severity == "warning":
            after = before._replace(warning=min(before.warning or ts, ts))
        else:
            after = before._replace(critical=min(before.critical or ts, ts))
        self._incidents[key] = after
        for each in before.counted():
            self._count(each, -1)
        for each in after.counted():
            self._count(each, 1)
        if len(self._incidents) > MAX_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]

    def _count(self, key: tuple[int, str, str], by: int) -> None:
        hour = key[0]
        if hour > self.newest:
            self.newest = hour
            for old in [each for each in self._counts if each[0] <= hour - MAX_HOURS]:
                del self._counts[old]
        if hour <= self.newest - MAX_HOURS:
            return
        self._counts[key] += by
        if self._counts[key] <= 0:
            del self._counts[key]

    def by_hour(self, severity: str, now: int, count: int) -> list[int]:
        """Incidents of each of `count` hours, the last one being that of `now`."""
        last = now // HOUR
        found = [0] * count
        for (hour, each, _), number in self._counts.items():
            at = hour - last + count - 1
            if each == severity and 0 <= at < count:
                found[at] += number
        return found

    def by_kind(self, severity: str, now: int, count: int) -> list[tuple[str, int]]:
        """(kind, number) in these hours, the most frequent first."""
        last = now // HOUR
        found: Counter[str] = Counter()
        for (hour, each, kind), number in self._counts.items():
            if each == severity and last - count < hour <= last:
                found[kind] += number
        return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
