"""Who has seen which anomaly, and which are muted: of all viewers, as the daemon's events say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from esper_overwatch.protocol.messages.events import AnomalyAcknowledged, AnomalyMuted
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

AnomalyKey = tuple[str, str]
"""(source, kind)."""
HERE = "this terminal"
"""Author of an acknowledgement or a mute that no other viewer knows of."""


class Acknowledgement(NamedTuple):
    """An acknowledgement of an anomaly."""

    since: int
    """Begin of the anomaly, microseconds; 0 = whichever was active at `ts`."""
    ts: int
    """Time of the acknowledgement, microseconds."""
    rank: int
    """Severity that was seen; a worse one asks again."""
    by: str = HERE
    reason: str = ""

    def covers(self, first: int, rank: int) -> bool:
        """True if it covers an anomaly that began at `first` and has this severity now."""
        return rank <= self.rank and (first == self.since if self.since else first <= self.ts)


class Mute(NamedTuple):
    """A mute of an anomaly."""

    until: int
    """End, microseconds."""
    by: str = HERE
    reason: str = ""


NO_MUTE = Mute(0)


@dataclass
class Acknowledgements:
    """The newest acknowledgement and mute of each anomaly; they outlive a resynchronisation."""

    _acknowledged: dict[AnomalyKey, Acknowledgement] = field(default_factory=dict)
    _muted: dict[AnomalyKey, Mute] = field(default_factory=dict)

    def fold_acknowledged(self, event: AnomalyAcknowledged, ts: int) -> AnomalyKey:
        """Take in the daemon's event; returns which anomaly it is about."""
        key = (event.source, event.kind)
        self.acknowledge(
            key, Acknowledgement(event.since, ts, SEVERITY_RANK[event.severity], event.by, event.reason)
        )
        return key

    def fold_muted(self, event: AnomalyMuted) -> None:
        self.mute((event.source, event.kind), Mute(event.until, event.by, event.reason))

    def acknowledge(self, key: AnomalyKey, found: Acknowledgement) -> None:
        self._acknowledged[key] = found

    def mute(self, key: AnomalyKey, found: Mute) -> None:
        self._muted[key] = found

    def acknowledgement(self, key: AnomalyKey, first: int, rank: int) -> Acknowledgement | None:
        """The one that covers an anomaly which began at `first`; None where there is none."""
        found = self._acknowledged.get(key)
        return found if found is not None and found.covers(first, rank) else None

    def mute_of(self, key: AnomalyKey) -> Mute:
        """The newest, which may be over."""
        return self._muted.get(key, NO_MUTE)
