"""Anomalies in a store of their own, so that no other event can push one out.

What is over by itself waits no longer for the operator, but for numbers that were not finite: those wait
until they are acknowledged. Acknowledging and muting are this viewer's own: nobody else sees them.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.events import Anomaly

from .history import SECOND

Key = tuple[str, str]
"""(source, kind)."""

MUTE = 600 * SECOND
RANK = {"critical": 2, "warning": 1, "info": 0}
KEEP = 200
"""Records beyond so many go, those first that are over and wait for nobody."""

LATCHED = "nonfinite"
"""Kinds that end so wait for an acknowledgement even when they are over."""


@dataclass
class Record:
    """One trouble, from its first sign to now."""

    key: Key
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
    acked: bool = False
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
    def waiting(self) -> bool:
        """Whether the operator has to see it."""
        if self.acked or self.severity == "info":
            return False
        return self.active or self.kind.endswith(LATCHED)

    def muted(self, now: int) -> bool:
        return now < self.muted_until


class Anomalies:
    """All records by (source, kind)."""

    def __init__(self) -> None:
        self._records: dict[Key, Record] = {}
        self._acked: dict[Key, tuple[int, int]] = {}
        """What was acknowledged: key → (since, rank), which outlives a resynchronisation."""

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def fold(self, event: Anomaly, *, ts: int, env: int | None) -> None:
        """Take in what the trainer says of one (source, kind)."""
        key = (event.source, event.kind)
        old = self._records.get(key)
        rank = RANK[event.severity]
        since = event.since or (old.first if old is not None and old.active else ts)
        same = old is not None and old.first == since
        peak = event.value
        if old is not None and same:
            peak = _farther(old.peak, event.value, event.threshold) if event.active else old.peak
        record = Record(
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
        record.acked = known is not None and known[0] == since and rank <= known[1]
        self._records[key] = record
        if len(self._records) > KEEP:
            self._trim()

    def _trim(self) -> None:
        over = [r for r in self._records.values() if not r.waiting and not r.active]
        for record in sorted(over, key=lambda r: r.last)[: max(0, len(self._records) - KEEP)]:
            del self._records[record.key]

    def drop(self) -> None:
        """Forget the records, for a snapshot brings them again; what was acknowledged stays so."""
        self._records.clear()

    # --- what the operator does --------------------------------------------------------------------

    def ack(self, key: Key) -> None:
        record = self._records[key]
        record.acked = True
        self._acked[key] = (record.first, RANK[record.severity])

    def ack_all(self) -> int:
        """Acknowledge everything; returns how many that were."""
        open_ones = [r for r in self._records.values() if r.waiting]
        for record in open_ones:
            self.ack(record.key)
        return len(open_ones)

    def mute(self, key: Key, now: int) -> bool:
        """Silence a record for ten minutes, or end its silence; returns whether it is silent now."""
        record = self._records[key]
        record.muted_until = 0 if record.muted(now) else now + MUTE
        return record.muted_until > 0

    # --- what the screen asks ----------------------------------------------------------------------

    def ordered(self) -> list[Record]:
        """Waiting before seen, active before over, the worst and newest first."""
        return sorted(
            self._records.values(),
            key=lambda r: (not r.waiting, not r.active, -RANK[r.severity], -r.last, r.key),
        )

    def open_records(self, now: int) -> list[Record]:
        """Those that wait for the operator: neither acknowledged nor muted nor of the past."""
        return [r for r in self.ordered() if r.waiting and not r.muted(now)]

    def active_count(self, severity: str) -> int:
        return sum(r.active and r.severity == severity for r in self._records.values())

    def active_at(self, source: str) -> list[Record]:
        """Active ones of a source and of its parts (`env07` and `env07.r0c1`), the worst first."""
        found = [
            r
            for r in self._records.values()
            if r.active and (r.source == source or r.source.startswith(source + "."))
        ]
        return sorted(found, key=lambda r: (-RANK[r.severity], -r.last))


def _farther(peak: float | None, value: float | None, threshold: float | None) -> float | None:
    """The one of two bad values that is farther out; below its threshold, low is bad."""
    if peak is None or value is None or peak != peak or value != value:
        return value if peak is None or peak == peak else peak
    return min(peak, value) if threshold is not None and value < threshold else max(peak, value)
