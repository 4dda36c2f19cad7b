"""One seed in a row: the columns that the panels of an env and of all seeds share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from esper_overwatch.overwatch_tui.model.anomalies import env_source
from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.protocol.messages.events import SeedGate

from .env_rows import SEED_STAGES
from .format import SHORT_STAGE_NAMES, format_compact, format_number, format_points
from .lines import Line, Row
from .plot import gauge
from .theme import Glyphs, severity_mark

MIN_BAR_WIDTH = 3
"""A narrower gauge of alpha is left out, and the row takes its short form."""

_WAITS_FOR = {
    "min_epochs": "epochs",
    "others_mature": "other seeds",
    "alpha_at_one": "alpha",
    "not_moving": "alpha",
    "contribution_measured": "a contribution",
}
"""What comes with time, by the check that fails until then."""
_FAILS_BY = {
    "dormant": "slot taken",
    "blueprint_present": "no such blueprint",
    "below_max_live": "too many seeds",
    "germinated": "not germinated",
    "training": "not training",
    "gradient_measured": "gradients not measured",
    "not_exploding": "exploding gradients",
    "healthy": "unhealthy gradients",
    "improved": "no gain",
    "gradient_ratio": "weak gradients",
    "blending": "not blending",
    "holding": "not holding",
    "contributes": "too little contribution",
    "refused": "refused",
}


class SeedRow(NamedTuple):
    """One slot now; None is what was not measured."""

    slot: str
    stage: str
    blueprint: str
    epochs: int | None
    """Epochs in this stage."""
    alpha: float | None
    contribution: float | None
    """Share of accuracy that the host would lose without it."""
    grad_norm: float | None
    health: float | None
    health_severity: str | None
    drift: float | None
    drift_severity: str | None
    gate: SeedGate | None


def seed_row(state: State, env: int, slot: int) -> SeedRow:
    """One slot of an epoch that has been received."""
    epoch = state.epoch
    assert epoch is not None

    def of(column: list[list[Any]]) -> Any:
        return at_or_none(at_or_none(column, env), slot)

    name = str(at_or_none(state.slots, slot))
    source = f"{env_source(env)}.{name}"
    stage = state.stage_name(epoch.stage[env][slot])
    health = of(epoch.seed_health)
    has_seed = stage in SEED_STAGES
    return SeedRow(
        slot=name,
        stage=stage,
        blueprint=state.blueprint_name(of(epoch.blueprint)),
        epochs=of(epoch.epochs_in_stage),
        alpha=of(epoch.alpha),
        contribution=of(epoch.contribution),
        grad_norm=of(epoch.seed_grad_norm),
        health=health,
        health_severity=state.detector_severity(source, "gradient_health"),
        drift=state.drift_of(source) if has_seed else None,
        drift_severity=state.detector_severity(source, "norm_drift"),
        gate=state.gates.get((env, name)) if has_seed else None,
    )


def seed_header(bar: int, drift_width: int) -> Line:
    """The titles over `seed_cells`; too few columns for the gauge ask for the short form."""
    if bar < MIN_BAR_WIDTH:
        return (("BLUEPRINT  STAGE   EP ALPHA  CONTR  GRAD DRIFT GATE", "dim"),)
    row = Row().put("BLUEPRINT  STAGE      EP ALPHA ", "dim").put("", "", bar)
    return tuple(row.put(f" CONTRIB   GRAD HEALTH{'DRIFT':>{drift_width}}  GATE", "dim").spans)


def seed_cells(seed: SeedRow, bar: int, digits: int, glyphs: Glyphs, *, explains: bool = False) -> Line:
    """Blueprint, stage, alpha, contribution, gradient, drift and the newest gate of a seed.

    Args:
        bar: columns of the gauge; too few for one ask for the short form.
        digits: columns that a gradient norm or a drift in fixed point may take.
        explains: write why a gate did not let the seed through.
    """
    short = bar < MIN_BAR_WIDTH
    style = seed.stage.lower()
    row = Row().put(seed.blueprint, "", 11)
    row.put(SHORT_STAGE_NAMES.get(seed.stage, seed.stage) if short else seed.stage, style, 7 if short else 10)
    row.put(format_number(seed.epochs, "d"), "dim", 3, ">").put(format_number(seed.alpha), "", 6, ">")
    if not short:
        row.put(" ").add(gauge(seed.alpha, bar, glyphs, style))
    row.put(format_points(seed.contribution), contribution_style(seed.contribution), 7 if short else 8, ">")
    row.put(format_compact(seed.grad_norm, digits), "", 6 if short else 7, ">")
    if not short:
        row.put(format_number(seed.health), seed.health_severity or "dim", 7, ">")
    row.put(format_compact(seed.drift, digits), seed.drift_severity or "dim", 6, ">")
    row.put(severity_mark(seed.drift_severity), seed.drift_severity or "")
    gate = seed.gate
    if gate is not None:
        verdict, why, style = gate_verdict(gate.failed)
        row.put("" if short else " ").put(f"{gate.gate} ", style)
        row.put(verdict if explains else verdict[:4], style).put(
            f": {why}" if why and explains else "", style
        )
    return tuple(row.spans)


def contribution_style(contribution: float | None) -> str:
    """Green for what helps, red for what harms."""
    if contribution is None:
        return "dim"
    return "ok" if contribution > 0 else "pruned"


def gate_verdict(failed: Collection[str]) -> tuple[str, str, str]:
    """Verdict, why, and the style of both; of a gate that let a seed through `ok` and nothing.

    Args:
        failed: checks of the gate that failed; one that this version does not know is shown by its name.
    """
    if not failed:
        return "ok", "", "ok"
    causes = [_FAILS_BY.get(name, name.replace("_", " ")) for name in failed if name not in _WAITS_FOR]
    if causes:
        return "fails", ", ".join(causes), "warning"
    return "waits", ", ".join(dict.fromkeys(_WAITS_FOR[name] for name in failed)), "info"
