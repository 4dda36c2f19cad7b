"""Incidents as the daemon tells them, who has seen them, and which are muted.

An incident that is over no longer waits for the operator. What was acknowledged or muted, by whom and why,
the daemon tells all viewers; where none is connected, it concerns this terminal alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from esper_overwatch.protocol.messages.events import AnomalyAcknowledged, AnomalyMuted, Incident
from esper_overwatch.protocol.messages.incidents import incident_order
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

MUTE_SECONDS = 600
MAX_RECORDS = 64
"""Above this number, the oldest that are over are dropped."""
HERE = "this terminal"
"""Author of an acknowledgement or a mute that no other viewer knows of."""


NO_MUTE = AnomalyMuted(source="", kind="", until=0, by="")


@dataclass(frozen=True)
class IncidentRecord:
    """One incident, and what was said of it."""

    data: Incident
    acknowledged: AnomalyAcknowledged | None
    acknowledged_ts: int
    """Microseconds."""
    mute: AnomalyMuted

    @property
    def key(self) -> str:
        return self.data.id

    @property
    def is_acked(self) -> bool:
        seen = self.acknowledged
        return seen is not None and SEVERITY_RANK[self.data.severity] <= SEVERITY_RANK[seen.severity]

    @property
    def is_waiting(self) -> bool:
        """True if it needs an acknowledgement."""
        return self.data.active and self.data.severity != "info" and not self.is_acked

    def is_muted(self, now: int) -> bool:
        """True if it is muted at a time in microseconds."""
        return now < self.mute.until


@dataclass
class Incidents:
    """What the daemon tells of each, by id; acknowledgements and mutes outlive a resynchronisation."""

    _told: dict[str, Incident] = field(default_factory=dict)
    _acknowledged: dict[str, tuple[int, AnomalyAcknowledged]] = field(default_factory=dict)
    _muted: dict[str, AnomalyMuted] = field(default_factory=dict)

    def copy(self) -> Incidents:
        return Incidents(dict(self._told), dict(self._acknowledged), dict(self._muted))

    def __len__(self) -> int:
        return len(self._told)

    def get(self, key: str) -> IncidentRecord | None:
        return self._record(self._told[key]) if key in self._told else None

    def _record(self, data: Incident) -> IncidentRecord:
        ts, seen = self._acknowledged.get(data.id, (0, None))
        return IncidentRecord(data, seen, ts, self._muted.get(data.id, NO_MUTE))

    def fold(self, data: Incident) -> None:
        """Take in the newest event of one."""
        self._told[data.id] = data
        if len(self._told) > MAX_RECORDS:
            over = [each for each in self._told.values() if not each.active]
            for each in sorted(over, key=lambda one: one.over)[: len(self._told) - MAX_RECORDS]:
                del self._told[each.id]

    def begin_boot(self) -> None:
        """Another boot tells its own; what the one before left open ended with it."""
        self._told = {key: each for key, each in self._told.items() if not each.active}

    def drop(self) -> None:
        """Drop the records: a snapshot brings them again."""
        self._told.clear()

    def fold_acknowledged(self, event: AnomalyAcknowledged, ts: int) -> None:
        self._acknowledged[event.incident] = ts, event

    def fold_muted(self, event: AnomalyMuted) -> None:
        self._muted[event.incident] = event

    def ack(self, key: str, now: int) -> None:
        """Acknowledge at the present severity, for this terminal until the daemon says it of all."""
        told = self._told[key]
        self._acknowledged[key] = (
            now,
            AnomalyAcknowledged(
                source=told.source, kind=told.kind, since=told.since, severity=told.severity, by=HERE
            ),
        )

    def silence(self, key: str, until: int) -> None:
        """Mute until a time (microseconds; 0 = no longer), for this terminal likewise."""
        self._muted[key] = replace(NO_MUTE, until=until, by=HERE)

    def ordered(self) -> list[IncidentRecord]:
        """Records in the order waiting, open, worst, causes before symptoms, newest."""
        records = map(self._record, self._told.values())
        return sorted(records, key=lambda r: (not r.is_waiting, *incident_order(r.data)))

    def waiting(self) -> list[IncidentRecord]:
        """Records that need an acknowledgement, muted ones included."""
        return [record for record in self.ordered() if record.is_waiting]

    def unseen(self, now: int) -> list[IncidentRecord]:
        """Records that need the operator: neither acknowledged nor muted nor over."""
        return [record for record in self.waiting() if not record.is_muted(now)]

    def open(self, severity: str = "") -> list[IncidentRecord]:
        """Records that are not over, of one severity or of all."""
        found = [record for record in self.ordered() if record.data.active]
        return [record for record in found if not severity or record.data.severity == severity]

    def of_env(self, env: int) -> IncidentRecord | None:
        """The first open record that names an env."""
        return next((record for record in self.open() if env in record.data.envs), None)

    def env_ranks(self) -> dict[int, int]:
        """Envs that need attention, and how much: 0 = the most; in the order of the records."""
        ranks: dict[int, int] = {}
        for record in self.open():
            for env in record.data.envs:
                ranks.setdefault(env, len(ranks))
        return ranks
