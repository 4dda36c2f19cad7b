"""Charts of what is worth a look in any run: they fill what the rows of a view leave empty."""

from __future__ import annotations

from collections.abc import Sequence

from esper_overwatch.overwatch_tui.model.curves import metric_curve

from .chart_page import draw_charts
from .chart_view import MAX_PINS
from .lines import EMPTY, Line
from .panel import PanelInputs

MIN_LINES = 8
"""Least lines for charts; fewer are left empty."""
_CHART_WIDTH, _CHART_HEIGHT = 40, 8
"""Least columns and lines of one chart."""
_TRAINING = (
    "return.p50",
    "accuracy.mean",
    "ppo.approx_kl",
    "ppo.entropy",
    "ppo.explained_variance",
    "speed",
    "cpu.machine",
    "memory",
)
_MACHINE = ("cpu.machine", "memory", "gpu")


def overview_curves(inputs: PanelInputs) -> list[str]:
    """Names of the curves that are shown where none is chosen, the most telling first."""
    logged = map(metric_curve, sorted(inputs.state.metrics.statistics))
    names = (*logged, *_MACHINE) if inputs.state.is_published else _TRAINING
    return [name for name in names if inputs.history(name) is not None]


def fill_with_charts(
    inputs: PanelInputs, lines: Sequence[Line], width: int, height: int, names: Sequence[str] | None = None
) -> list[Line]:
    """The lines, and charts of the named curves (None = the overview) in what is left of `height` lines."""
    room = height - len(lines) - 1
    chosen = overview_curves(inputs) if names is None else names
    if room < MIN_LINES or not chosen:
        return list(lines)
    count = max(1, min(MAX_PINS, (width // _CHART_WIDTH) * (room // _CHART_HEIGHT)))
    return [*lines, EMPTY, *draw_charts(inputs, chosen[:count], width, room)]
