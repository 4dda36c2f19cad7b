"""Signals that the daemon has raised, by source and kind: they colour rows; incidents group them."""

from __future__ import annotations

from dataclasses import dataclass

from esper_overwatch.protocol.messages.anomaly_guide import ROLLBACK
from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK


def env_source(env: int) -> str:
    """Name of an env in events."""
    return f"env{env:02d}"


@dataclass(frozen=True)
class AnomalyRecord:
    """One raised signal."""

    source: str
    kind: str
    severity: str
    count: int
    last: int
    """Microseconds."""


Anomalies = dict[tuple[str, str], AnomalyRecord]
"""The raised signals by (source, kind)."""


def fold_anomaly(known: Anomalies, event: Anomaly, *, ts: int) -> None:
    """Take in the newest event of one (source, kind)."""
    key = event.source, event.kind
    if event.active:
        known[key] = AnomalyRecord(*key, event.severity, event.count, ts)
    else:
        known.pop(key, None)


def raised_at(known: Anomalies, source: str) -> list[AnomalyRecord]:
    """Those of a source and of its parts (`env07` and `env07.r0c1`), the worst first."""
    found = [one for one in known.values() if one.source == source or one.source.startswith(source + ".")]
    return sorted(found, key=lambda r: (-SEVERITY_RANK[r.severity], r.kind != ROLLBACK, -r.last))
