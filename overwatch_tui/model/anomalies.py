"""Anomalies in a store of their own, so that no other event can push one out.

Rollbacks by the governor, and signals of the policy beyond their limits, are records too: what the store
does not know is not wrong, for any part of the screen. An anomaly that ends no longer waits for the operator;
only rollbacks and numbers that were not finite wait until they are acknowledged. What was acknowledged or
muted, by whom and why, the daemon tells all viewers; where none is connected, it concerns this one alone.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass

from esper_overwatch.protocol.messages.anomaly_guide import ROLLBACK
from esper_overwatch.protocol.messages.events import Anomaly, AnomalyAcknowledged, AnomalyMuted
from esper_overwatch.protocol.messages.thresholds import Threshold
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK, Severity

from .acknowledgements import NO_MUTE, Acknowledgement, Acknowledgements, AnomalyKey, Mute
from .limits import LIMIT_SUFFIX
from .time_series import SECOND

MUTE_SECONDS = 600
MAX_RECORDS = 200
"""Above this number, records that are over and do not wait are dropped."""

ROLLBACK_SHOWN_MICROSECONDS = 60 * SECOND
"""Time for which a rollback counts as active: the env has to recover from it."""

LATCHED_SUFFIXES = ("nonfinite", ROLLBACK)
"""Kinds with these endings wait for an acknowledgement even when they are over."""


def env_source(env: int) -> str:
    """Name of an env in events."""
    return f"env{env:02d}"


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
    reason: str = ""
    """Reason of a rollback."""
    acknowledged: Acknowledgement | None = None
    mute: Mute = NO_MUTE

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
    def is_of_viewer(self) -> bool:
        """True if the viewer itself found it: then its beginning differs from viewer to viewer."""
        return self.kind.endswith(LIMIT_SUFFIX)

    @property
    def is_acked(self) -> bool:
        return self.acknowledged is not None

    @property
    def is_waiting(self) -> bool:
        """True if it needs an acknowledgement."""
        if self.is_acked or self.severity == "info":
            return False
        return self.active or self.kind.endswith(LATCHED_SUFFIXES)

    def is_muted(self, now: int) -> bool:
        """True if it is muted at a time in microseconds."""
        return now < self.mute.until


class Anomalies:
    """All records by (source, kind)."""

    def __init__(self) -> None:
        self._records: dict[AnomalyKey, AnomalyRecord] = {}
        self.seen = Acknowledgements()
        self._peaks: dict[AnomalyKey, tuple[int, float | None]] = {}
        """Key → (since, the worst value that was received), which outlives it too."""

    def copy(self) -> Anomalies:
        return copy.deepcopy(self)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: AnomalyKey) -> AnomalyRecord | None:
        return self._records.get(key)

    def fold(self, event: Anomaly, *, ts: int, env: int | None) -> None:
        """Take in the newest event of one (source, kind)."""
        key = (event.source, event.kind)
        old = self._records.get(key)
        rank = SEVERITY_RANK[event.severity]
        since = event.since or (old.first if old is not None and old.active else ts)
        worst = event.value if event.peak is None else event.peak
        known_since, peak = self._peaks.get(key, (since, worst))
        if known_since != since:
            peak = worst
        elif event.active or event.peak is not None:
            peak = _worse_value(peak, worst, event.threshold)
        self._peaks[key] = (since, peak)
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
            acknowledged=self.seen.acknowledgement(key, since, rank),
            mute=self.seen.mute_of(key),
        )
        self._records[key] = record
        if len(self._records) > MAX_RECORDS:
            self._trim()

    def fold_limit(
        self, signal: str, limit: Threshold, value: float | None, *, twins: Collection[AnomalyKey], ts: int
    ) -> None:
        """Raise or end a record of the policy for a signal that is beyond its limits, or within them.

        Args:
            twins: what the daemon's own checks call the same; one of these, active, says it all.
            ts: microseconds.
        """
        kind = signal + LIMIT_SUFFIX
        severity: Severity | None = None if value is None else limit.severity(value)
        if any(twin in self._records and self._records[twin].active for twin in twins):
            severity = None
        old = self._records.get(("policy", kind))
        if severity is None:
            if old is not None:
                del self._records[old.key]
            return
        since = old.first if old is not None else ts
        count = old.count + 1 if old is not None else 1
        beyond = limit.critical if severity == "critical" else limit.warning
        found = Anomaly(
            kind=kind,
            source="policy",
            severity=severity,
            active=True,
            value=value,
            threshold=beyond,
            count=count,
            since=since,
            hint=limit.hint,
        )
        self.fold(found, ts=ts, env=None)

    def fold_rollback(self, reason: str, *, ts: int, env: int) -> None:
        source = env_source(env)
        old = self._records.get((source, ROLLBACK))
        count = old.count + 1 if old is not None and old.active else 1
        hint = f"{reason}: back at its last good epoch; Enter shows the env, T looks closer"
        found = Anomaly(
            kind=ROLLBACK, source=source, severity="critical", active=True, count=count, since=ts, hint=hint
        )
        self.fold(found, ts=ts, env=env)
        self._records[source, ROLLBACK].reason = reason

    def forget_limit(self, signal: str) -> None:
        """Drop the record of a limit: the daemon's own check of the signal has raised one."""
        self._records.pop(("policy", signal + LIMIT_SUFFIX), None)

    def expire(self, now: int) -> None:
        """End the rollbacks that are old by now (microseconds)."""
        for record in self._records.values():
            if record.kind == ROLLBACK and now - record.last >= ROLLBACK_SHOWN_MICROSECONDS:
                record.active = False

    def _trim(self) -> None:
        over = [r for r in self._records.values() if not r.is_waiting and not r.active]
        for record in sorted(over, key=lambda r: r.last)[: max(0, len(self._records) - MAX_RECORDS)]:
            del self._records[record.key]

    def drop(self) -> None:
        """Drop the records: a snapshot brings them again. What was acknowledged stays so."""
        self._records.clear()

    def fold_acknowledged(self, event: AnomalyAcknowledged, ts: int) -> None:
        self._see(self.seen.fold_acknowledged(event, ts))

    def fold_muted(self, event: AnomalyMuted) -> None:
        self.seen.fold_muted(event)
        self._see((event.source, event.kind))

    def ack(self, key: AnomalyKey, now: int) -> None:
        """Acknowledge a record at its present severity, for this terminal until the daemon says it of all."""
        record = self._records[key]
        self.seen.acknowledge(key, Acknowledgement(record.first, now, SEVERITY_RANK[record.severity]))
        self._see(key)

    def silence(self, key: AnomalyKey, until: int) -> None:
        """Mute a record until a time (microseconds; 0 = no longer), for this terminal likewise."""
        self.seen.mute(key, Mute(until))
        self._see(key)

    def _see(self, key: AnomalyKey) -> None:
        """Bring a record up to what was acknowledged and muted."""
        record = self._records.get(key)
        if record is not None:
            rank = SEVERITY_RANK[record.severity]
            record.acknowledged = self.seen.acknowledgement(key, record.first, rank)
            record.mute = self.seen.mute_of(key)

    def waiting(self) -> list[AnomalyRecord]:
        """Records that need an acknowledgement, muted ones included."""
        return [record for record in self.ordered() if record.is_waiting]

    def ordered(self) -> list[AnomalyRecord]:
        """Records in the order waiting, active, worst, newest."""
        return sorted(
            self._records.values(),
            key=lambda r: (
                not r.is_waiting,
                not r.active,
                -SEVERITY_RANK[r.severity],
                -(r.first if r.active else r.last),
                r.key,
            ),
        )

    def env_ranks(self) -> dict[int, int]:
        """Envs that need attention, and how much: 0 = the most; in the order of the records."""
        ranks: dict[int, int] = {}
        for record in self.ordered():
            if record.env is not None and (record.active or record.is_waiting):
                ranks.setdefault(record.env, len(ranks))
        return ranks

    def open_records(self, now: int) -> list[AnomalyRecord]:
        """Records that need the operator: neither acknowledged nor muted nor over."""
        return [r for r in self.ordered() if r.is_waiting and not r.is_muted(now)]

    def active_count(self, severity: str) -> int:
        return sum(r.active and r.severity == severity for r in self._records.values())

    def active_at(self, source: str) -> list[AnomalyRecord]:
        """Active ones of a source and of its parts (`env07` and `env07.r0c1`), the worst first."""
        found = [
            r
            for r in self._records.values()
            if r.active and (r.source == source or r.source.startswith(source + "."))
        ]
        return sorted(found, key=lambda r: (-SEVERITY_RANK[r.severity], r.kind != ROLLBACK, -r.last))


def _worse_value(peak: float | None, value: float | None, threshold: float | None) -> float | None:
    """The one of two bad values that is farther out; below its threshold, low is bad."""
    if peak is None or value is None or peak != peak or value != value:
        return value if peak is None or peak == peak else peak
    return min(peak, value) if threshold is not None and value < threshold else max(peak, value)
