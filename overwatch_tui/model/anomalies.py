"""Anomalies in a store of their own, so that no other event can push one out.

An anomaly that ends no longer waits for the operator; only one of numbers that were not finite waits until
it is acknowledged. Acknowledging and muting concern this viewer alone: they are not sent to the daemon.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from protocol.messages.events import Anomaly
from protocol.messages.vocabulary import SEVERITY_RANK

from .time_series import SECOND

AnomalyKey = tuple[str, str]
"""(source, kind)."""

MUTE_MICROSECONDS = 600 * SECOND
MAX_RECORDS = 200
"""Beyond so many, records are dropped that are over and do not wait."""

LATCHED_SUFFIX = "nonfinite"
"""Kinds with this ending wait for an acknowledgement even when they are over."""


@dataclass
class AnomalyRecord:
    """One anomaly, from its first event to now."""

    key: AnomalyKey
    severity: str
    active: bool
    first: int
    """Microseconds."""
    last: int
    value: float | None
    peak: float | None
    """The value farthest beyond the threshold."""
    threshold: float | None
    count: int
    hint: str
    env: int | None
    is_acked: bool = False
    muted_until: int = 0

    @property
    def source(self) -> str:
        return self.key[0]

    @property
    def kind(self) -> str:
        return self.key[1]

    @property
    def short_kind(self) -> str:
        """The kind in fewer letters."""
        return {"norm_drift": "drift"}.get(self.kind, self.kind.replace("gradient_", "grad_"))

    @property
    def is_waiting(self) -> bool:
        """Whether it needs an acknowledgement."""
        if self.is_acked or self.severity == "info":
            return False
        return self.active or self.kind.endswith(LATCHED_SUFFIX)

    def is_muted(self, now: int) -> bool:
        """Whether it is silenced at a time in microseconds."""
        return now < self.muted_until


class Anomalies:
    """All records by (source, kind)."""

    def __init__(self) -> None:
        self._records: dict[AnomalyKey, AnomalyRecord] = {}
        self._acked: dict[AnomalyKey, tuple[int, int]] = {}
        """What was acknowledged: key → (since, rank), which outlives a resynchronisation."""

    def copy(self) -> Anomalies:
        """One that later events and acknowledgements do not change."""
        return copy.deepcopy(self)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: AnomalyKey) -> AnomalyRecord | None:
        """A record by source and kind."""
        return self._records.get(key)

    def fold(self, event: Anomaly, *, ts: int, env: int | None) -> None:
        """Take in the newest event of one (source, kind)."""
        key = (event.source, event.kind)
        old = self._records.get(key)
        rank = SEVERITY_RANK[event.severity]
        since = event.since or (old.first if old is not None and old.active else ts)
        same = old is not None and old.first == since
        peak = event.value
        if old is not None and same:
            peak = _worse_value(old.peak, event.value, event.threshold) if event.active else old.peak
        record = AnomalyRecord(
            key=key,
            severity=event.severity,
            active=event.active,
            first=since,
            last=ts,
            value=event.value if event.value is not None or old is None else old.value,
            peak=peak,
            threshold=event.threshold,
            count=event.count,
            hint=event.hint,
            env=env,
            muted_until=old.muted_until if old else 0,
        )
        known = self._acked.get(key)
        record.is_acked = known is not None and known[0] == since and rank <= known[1]
        self._records[key] = record
        if len(self._records) > MAX_RECORDS:
            self._trim()

    def _trim(self) -> None:
        over = [r for r in self._records.values() if not r.is_waiting and not r.active]
        for record in sorted(over, key=lambda r: r.last)[: max(0, len(self._records) - MAX_RECORDS)]:
            del self._records[record.key]

    def drop(self) -> None:
        """Drop the records: a snapshot brings them again. What was acknowledged stays so."""
        self._records.clear()

    def ack(self, key: AnomalyKey) -> None:
        """Acknowledge a record at its present severity."""
        record = self._records[key]
        record.is_acked = True
        self._acked[key] = (record.first, SEVERITY_RANK[record.severity])

    def ack_all(self) -> int:
        """Acknowledge everything; returns how many that were."""
        open_ones = [r for r in self._records.values() if r.is_waiting]
        for record in open_ones:
            self.ack(record.key)
        return len(open_ones)

    def mute(self, key: AnomalyKey, now: int) -> bool:
        """Silence a record for ten minutes, or end its silence; returns whether it is silent now."""
        record = self._records[key]
        record.muted_until = 0 if record.is_muted(now) else now + MUTE_MICROSECONDS
        return record.muted_until > 0

    def ordered(self) -> list[AnomalyRecord]:
        """Waiting before seen, active before over, the worst and newest first."""
        return sorted(
            self._records.values(),
            key=lambda r: (not r.is_waiting, not r.active, -SEVERITY_RANK[r.severity], -r.last, r.key),
        )

    def open_records(self, now: int) -> list[AnomalyRecord]:
        """Those that need the operator: neither acknowledged nor muted nor over."""
        return [r for r in self.ordered() if r.is_waiting and not r.is_muted(now)]

    def active_count(self, severity: str) -> int:
        """How many records of a severity are active."""
        return sum(r.active and r.severity == severity for r in self._records.values())

    def active_at(self, source: str) -> list[AnomalyRecord]:
        """Active ones of a source and of its parts (`env07` and `env07.r0c1`), the worst first."""
        found = [
            r
            for r in self._records.values()
            if r.active and (r.source == source or r.source.startswith(source + "."))
        ]
        return sorted(found, key=lambda r: (-SEVERITY_RANK[r.severity], -r.last))


def _worse_value(peak: float | None, value: float | None, threshold: float | None) -> float | None:
    """The one of two bad values that is farther out; below its threshold, low is bad."""
    if peak is None or value is None or peak != peak or value != value:
        return value if peak is None or peak == peak else peak
    return min(peak, value) if threshold is not None and value < threshold else max(peak, value)
