"""Incidents as the daemon tells them, who has seen them, and which are muted.

An incident that is over no longer waits for the operator. What was acknowledged or muted, by whom and why,
the daemon tells all viewers; where none is connected, it concerns this terminal alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from esper_overwatch.protocol.messages.events import AnomalyAcknowledged, AnomalyMuted, Incident
from esper_overwatch.protocol.messages.incidents import incident_order
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

MUTE_SECONDS = 600
MAX_RECORDS = 64
"""Above this number, the oldest that are over are dropped."""
HERE = "this terminal"
"""Author of an acknowledgement or a mute that no other viewer knows of."""


class Acknowledgement(NamedTuple):
    """An acknowledgement of an incident."""

    ts: int
    """Microseconds."""
    rank: int
    """Severity that was seen; a worse one asks again."""
    by: str = HERE
    reason: str = ""


class Mute(NamedTuple):
    """A mute of an incident."""

    until: int
    """End, microseconds."""
    by: str = HERE
    reason: str = ""


NO_MUTE = Mute(0)


@dataclass
class IncidentRecord:
    """One incident, and what was said of it."""

    data: Incident
    acknowledged: Acknowledgement | None = None
    mute: Mute = NO_MUTE

    @property
    def key(self) -> str:
        return self.data.id

    @property
    def is_acked(self) -> bool:
        seen = self.acknowledged
        return seen is not None and SEVERITY_RANK[self.data.severity] <= seen.rank

    @property
    def is_waiting(self) -> bool:
        """True if it needs an acknowledgement."""
        return self.data.active and self.data.severity != "info" and not self.is_acked

    def is_muted(self, now: int) -> bool:
        """True if it is muted at a time in microseconds."""
        return now < self.mute.until


@dataclass
class Incidents:
    """All records by id; acknowledgements and mutes outlive a resynchronisation."""

    _records: dict[str, IncidentRecord] = field(default_factory=dict)
    _acknowledged: dict[str, Acknowledgement] = field(default_factory=dict)
    _muted: dict[str, Mute] = field(default_factory=dict)

    def copy(self) -> Incidents:
        return copy.deepcopy(self)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> IncidentRecord | None:
        return self._records.get(key)

    def fold(self, data: Incident) -> None:
        """Take in the newest event of one."""
        seen, mute = self._acknowledged.get(data.id), self._muted.get(data.id, NO_MUTE)
        self._records[data.id] = IncidentRecord(data, seen, mute)
        if len(self._records) > MAX_RECORDS:
            over = [record for record in self._records.values() if not record.data.active]
            for record in sorted(over, key=lambda r: r.data.over)[: len(self._records) - MAX_RECORDS]:
                del self._records[record.key]

    def begin_boot(self) -> None:
        """Another boot tells its own; what the one before left open ended with it."""
        for key in [key for key, record in self._records.items() if record.data.active]:
            del self._records[key]

    def drop(self) -> None:
        """Drop the records: a snapshot brings them again."""
        self._records.clear()

    def fold_acknowledged(self, event: AnomalyAcknowledged, ts: int) -> None:
        seen = Acknowledgement(ts, SEVERITY_RANK[event.severity], event.by, event.reason)
        self._see(event.incident, seen)

    def fold_muted(self, event: AnomalyMuted) -> None:
        self._silence(event.incident, Mute(event.until, event.by, event.reason))

    def ack(self, key: str, now: int) -> None:
        """Acknowledge at the present severity, for this terminal until the daemon says it of all."""
        self._see(key, Acknowledgement(now, SEVERITY_RANK[self._records[key].data.severity]))

    def silence(self, key: str, until: int) -> None:
        """Mute until a time (microseconds; 0 = no longer), for this terminal likewise."""
        self._silence(key, Mute(until))

    def _see(self, key: str, seen: Acknowledgement) -> None:
        self._acknowledged[key] = seen
        if key in self._records:
            self._records[key].acknowledged = seen

    def _silence(self, key: str, mute: Mute) -> None:
        self._muted[key] = mute
        if key in self._records:
            self._records[key].mute = mute

    def ordered(self) -> list[IncidentRecord]:
        """Records in the order waiting, open, worst, causes before symptoms, newest."""
        return sorted(self._records.values(), key=lambda r: (not r.is_waiting, *incident_order(r.data)))

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
