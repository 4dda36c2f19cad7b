"""Signals that the daemon has raised, by source and kind: they colour rows; incidents group them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from esper_overwatch.protocol.messages.anomaly_guide import ROLLBACK
from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

AnomalyKey = tuple[str, str]
"""(source, kind)."""


def env_source(env: int) -> str:
    """Name of an env in events."""
    return f"env{env:02d}"


@dataclass
class AnomalyRecord:
    """One raised signal."""

    source: str
    kind: str
    severity: str
    count: int
    last: int
    """Microseconds."""


class Anomalies:
    """The raised signals by (source, kind)."""

    def __init__(self) -> None:
        self._records: dict[AnomalyKey, AnomalyRecord] = {}

    def copy(self) -> Anomalies:
        return copy.deepcopy(self)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: AnomalyKey) -> AnomalyRecord | None:
        return self._records.get(key)

    def fold(self, event: Anomaly, *, ts: int) -> None:
        """Take in the newest event of one (source, kind)."""
        key = (event.source, event.kind)
        if event.active:
            self._records[key] = AnomalyRecord(*key, event.severity, event.count, ts)
        else:
            self._records.pop(key, None)

    def drop(self) -> None:
        """Drop the records: a snapshot, or another boot, tells its own."""
        self._records.clear()

    def active_at(self, source: str) -> list[AnomalyRecord]:
        """Those of a source and of its parts (`env07` and `env07.r0c1`), the worst first."""
        found = [
            record
            for record in self._records.values()
            if record.source == source or record.source.startswith(source + ".")
        ]
        return sorted(found, key=lambda r: (-SEVERITY_RANK[r.severity], r.kind != ROLLBACK, -r.last))
