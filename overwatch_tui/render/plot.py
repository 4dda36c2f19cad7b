"""Plots as text: a sparkline, a chart in braille (or ASCII) and a gauge. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from esper_overwatch.overwatch_tui.model.courses import Course
from esper_overwatch.overwatch_tui.model.time_series import Bucket

from .canvas import MARK_DISTANCE, ChartMemory, Column, CurveValues, PlotGrid
from .chart_axis import ChartAxis
from .format import format_count
from .lines import Line, Row, block
from .scale import make_scale
from .theme import Glyphs

MIN_AXIS_LINES = 7
"""Least height of a chart with a time axis, lines."""


def sparkline(
    history: Course | None,
    width: int,
    axis: ChartAxis,
    glyphs: Glyphs,
    *,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """One line: the mean of each bucket as one of the glyphs' levels, scaled to what is shown.

    What does not change is a line, not a row of bars.

    Args:
        history: the signal; None draws blanks.
        width: columns, one bucket each; too few show no course, and stay blank.
        low: fixed lower end of the scale.
        high: fixed upper end.
    """
    if history is None or width < MIN_SPARKLINE:
        return " " * max(width, 0)
    means = history.means(axis.now, axis.window, width)
    known = [mean for mean in means if mean is not None]
    if not known:
        return " " * width
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    levels = len(glyphs.spark)
    span = top - bottom
    if span <= 1e-9 * max(abs(top), abs(bottom), 1e-9):
        return "".join([" " if mean is None else glyphs.rule for mean in means])

    def level(value: float) -> str:
        return glyphs.spark[min(levels - 1, max(0, int((value - bottom) / span * levels)))]

    return "".join([" " if mean is None else level(mean) for mean in means])


def gauge(share: float | None, width: int, glyphs: Glyphs, style: str = "accent") -> Line:
    """A bar of `width` columns, `share` of it filled; dashes where nothing was measured."""
    if share is None or width <= 0:
        return ((glyphs.empty * max(width, 0), "faint"),)
    filled = round(min(1.0, max(0.0, share)) * width)
    return ((glyphs.full * filled, style), (glyphs.empty * (width - filled), "faint"))


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    history: Course | None
    style: str = "chart"
    scale: float = 1.0
    mark: str = ""
    """A letter or a number on the curve, which identifies it without colour."""
    is_line: bool = False
    """True draws the means only, without the envelope of least and greatest."""
    dot: str = "*"
    """Character of the curve in ASCII."""


MIN_SPARKLINE = 5
GUTTER = 7
"""Columns of the axis labels."""
MAX_REPEATED_MARKS = 4
"""Largest number of marked curves whose marks are repeated; above it they stand at the ends only."""


def plot_grid(width: int, axis: ChartAxis, glyphs: Glyphs) -> PlotGrid:
    """Columns of a chart of this width, labels included."""
    columns = max(width - GUTTER, 1)
    per_cell = 2 if glyphs.braille else 1
    count = columns * per_cell
    if axis.is_by_step:  # anchored to the left edge: the first step is always in it, and the last
        dt = -(-(axis.window + 1) // max(count - per_cell, 1))
        first = max(0, axis.now - axis.window) // dt // per_cell * per_cell
        return PlotGrid(columns, per_cell, dt, first + count - 1)
    dt = max(axis.window // count, 1)
    return PlotGrid(columns, per_cell, dt, (axis.now // dt // per_cell + 1) * per_cell - 1)


def chart(
    series: Sequence[Series],
    width: int,
    height: int,
    axis: ChartAxis,
    glyphs: Glyphs,
    *,
    limits: Sequence[tuple[float, str]] = (),
    floor: float | None = None,
    form: str = "{:.3g}",
    is_log: bool = False,
    at: int | None = None,
    memory: ChartMemory | None = None,
) -> list[Line]:
    """Min/max envelopes over a common axis, `height` lines of `width` columns.

    Args:
        series: what to draw, the later ones on top.
        width: columns, with the axis labels.
        limits: (value, style) of threshold lines; drawn where they are near the values.
        floor: a value that a linear axis always holds, such as 0.
        form: how the axis writes its numbers.
        is_log: whether the axis is logarithmic; without a value above 0 it is linear.
        at: time of the cursor, microseconds; None = no cursor.
        memory: of earlier charts: of one like it only the columns that have changed are drawn.
    """
    grid = plot_grid(width, axis, glyphs)
    labelled = height >= MIN_AXIS_LINES
    height -= labelled
    drawn = [(s, _scaled(s, grid)) for s in series]
    known = [value for _, values in drawn for value in values.known(is_log=is_log)]
    if not known:
        return block([((" " * GUTTER + "no data yet", "dim"),)], width, height + labelled)
    scale = make_scale(known, floor_at=floor, limits=[value for value, _ in limits], is_log=is_log)
    curves = {(i, s.label, s.style, s.dot, values.is_line): values for i, (s, values) in enumerate(drawn)}
    canvas = (memory or ChartMemory()).canvas(curves, grid, height, scale, glyphs)
    for value, style in limits:
        canvas.limit(value, style)
    if at is not None:
        canvas.rule_column(grid.column_of(at))
    for s, values in drawn:
        canvas.curve(values, s.style, s.dot)
    marked = [(s, values.means) for s, values in reversed(drawn) if s.mark]
    for i, (s, means) in enumerate(marked):
        canvas.mark_end(means, s.mark, s.style)
        if len(marked) <= MAX_REPEATED_MARKS:
            canvas.mark(means, s.mark, s.style, grid.end // grid.per_cell + MARK_DISTANCE // 3 * i)
    places = {0: 1.0, height // 2: 1.0 - (height // 2) / (height - 1), height - 1: 0.0} if height >= 5 else {}
    places = places or {0: 1.0, height - 1: 0.0}
    texts = _labels([scale.value(share) for share in places.values()], form, GUTTER - 1)
    labels = dict(zip(places, texts, strict=True))
    lines = []
    for y in range(height):
        row = Row().put(labels.get(y, ""), "dim", GUTTER - 1, ">")
        row.put(glyphs.bar, "rule")
        lines.append((*row.spans, *canvas.line(y)))
    if labelled:
        left, right = axis.edges
        lines.append(Row().to(GUTTER).put(left, "dim").right(right, "dim", width).line(width))
    return block(lines, width, len(lines))


def _labels(values: Sequence[float], form: str, width: int) -> list[str]:
    """The numbers of an axis, all in one form: the first in which none is cut and no two look the same."""
    step = min((abs(one - other) for one, other in pairwise(values)), default=1.0)
    texts: list[str] = []
    for written in (
        form.format,
        lambda value: format_count(value) if 1e3 <= abs(value) < 1e12 else f"{value:.2g}",
        partial(_fixed, decimals=_decimals(values, step / 50)),
        partial(_fixed, decimals=_decimals(values, step / 4)),
    ):
        texts = [written(value) for value in values]
        is_plain = not any("e" in text for text in texts)
        if is_plain and max(map(len, texts)) <= width and len(set(texts)) == len(set(values)):
            return texts
    for digits in (1, 0):
        texts = [f"{value:.{digits}e}".replace("e+0", "e").replace("e-0", "e-") for value in values]
        if max(map(len, texts)) <= width:
            break
    return texts


def _fixed(value: float, *, decimals: int) -> str:
    return f"{value:.{decimals}f}"


def _decimals(values: Sequence[float], error: float) -> int:
    """Number of decimals that represent the values up to an error."""
    return next((n for n in range(GUTTER) if all(abs(v - round(v, n)) <= error for v in values)), GUTTER)


def _scaled(series: Series, grid: PlotGrid) -> CurveValues:
    by = series.scale
    if series.is_line or series.history is None:
        means: Column = [None] * grid.count if series.history is None else grid.means(series.history)
        if by != 1.0:
            means = [None if mean is None else mean * by for mean in means]
        return CurveValues(means, means, means)
    buckets = grid.buckets(series.history)
    lows, means, highs = (
        [None if bucket is None else bucket[i] * by for bucket in buckets] for i in range(len(Bucket._fields))
    )
    return CurveValues(lows, means, highs)
