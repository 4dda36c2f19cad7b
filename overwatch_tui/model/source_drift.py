"""Gradient drift by source, folded from `drift`: the newest of each."""

from __future__ import annotations

from typing import NamedTuple

from esper_overwatch.protocol.messages.events import Drift

from .columns import zip_columns


class SourceDrift(NamedTuple):
    """Gradient drift of one source."""

    norm: float | None
    norm_ema: float | None
    norm_drift: float | None
    health: float | None
    health_ema: float | None
    health_drift: float | None


def fold_drift(known: dict[str, SourceDrift], data: Drift) -> None:
    """Take in an event; what an event of the same kind (envs or policy) no longer names was not measured."""
    measured = set(data.source)
    of_envs = {source.startswith("env") for source in measured}
    for source in [s for s in known if s not in measured and s.startswith("env") in of_envs]:
        del known[source]
    columns = (data.norm, data.norm_ema, data.norm_drift, data.health, data.health_ema, data.health_drift)
    for source, *values in zip_columns(data.source, *columns):
        known[source] = SourceDrift(*values)
