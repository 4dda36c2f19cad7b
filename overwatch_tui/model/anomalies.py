"""Signals that the daemon has raised, by source and kind: they colour rows; incidents group them."""

from __future__ import annotations

from esper_overwatch.protocol.messages.anomaly_guide import ROLLBACK
from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK


def env_source(env: int) -> str:
    """Name of an env in events."""
    return f"env{env:02d}"


Anomalies = dict[tuple[str, str], tuple[int, Anomaly]]
"""The raised signals by (source, kind), each with its time, microseconds."""


def fold_anomaly(known: Anomalies, event: Anomaly, *, ts: int) -> None:
    """Take in the newest event of one (source, kind)."""
    key = event.source, event.kind
    if event.active:
        known[key] = ts, event
    else:
        known.pop(key, None)


def raised_at(known: Anomalies, source: str) -> list[Anomaly]:
    """Those of a source and of its parts (`env07` and `env07.r0c1`), the worst first."""
    found = [one for one in known.values() if f"{one[1].source}.".startswith(f"{source}.")]
    found.sort(key=lambda one: (-SEVERITY_RANK[one[1].severity], one[1].kind != ROLLBACK, -one[0]))
    return [event for _, event in found]
