"""Plots as text: a sparkline, a chart in braille (or ASCII) and a gauge. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.courses import Course
from esper_overwatch.overwatch_tui.model.time_series import Bucket

from .chart_axis import ChartAxis
from .format import format_count
from .lines import Line, Row, StyledText, fit
from .scale import Scale, make_scale
from .theme import Glyphs, severity_label

_BRAILLE = 0x2800
"""The pattern without dots."""
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Braille bits of the left and right column of a cell, from the bottom up."""
_PATTERNS = tuple(
    tuple(sum(bit for row, bit in enumerate(column) if rows >> row & 1) for rows in range(16))
    for column in _DOTS
)
"""For each column of dots, the braille bits of any set of its four rows."""


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
MARK_DISTANCE = 24
"""Columns between two marks of a curve, counted from its end."""
MAX_REPEATED_MARKS = 4
"""Largest number of marked curves whose marks are repeated; above it they stand at the ends only."""
_LIMIT_LABEL = 4


@dataclass(frozen=True)
class PlotGrid:
    """The columns of a plot, anchored to absolute time: it moves by whole cells."""

    columns: int
    per_cell: int
    """Buckets a column: 2 in braille, 1 in ASCII."""
    dt: int
    """Microseconds of a bucket."""
    end: int
    """Index of the last bucket, since the epoch."""

    @property
    def count(self) -> int:
        return self.columns * self.per_cell

    @property
    def cell_micros(self) -> int:
        """Microseconds that a column spans."""
        return self.dt * self.per_cell

    def column_of(self, ts: int) -> int:
        """Column of a time; may lie outside the plot."""
        return (ts // self.dt - self.end + self.count - 1) // self.per_cell

    def buckets(self, course: Course) -> list[Bucket | None]:
        return course.buckets(self.end * self.dt, self.dt * self.count, self.count)

    def means(self, course: Course) -> list[float | None]:
        return course.means(self.end * self.dt, self.dt * self.count, self.count)


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
    """
    grid = plot_grid(width, axis, glyphs)
    labelled = height >= MIN_AXIS_LINES
    height -= labelled
    drawn = [(s, _scaled(s, grid)) for s in series]
    known = {value for _, values in drawn for value in values.known(is_log=is_log)}
    if not known:
        return [((" " * GUTTER + "no data yet", "dim"),)] + [()] * (height + labelled - 1)
    scale = make_scale(known, floor_at=floor, limits=[value for value, _ in limits], is_log=is_log)
    canvas = _Canvas(grid.columns, height, scale, glyphs)
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
        lines.append(fit((*row.spans, *canvas.line(y)), width))
    if labelled:
        lines.append(_axis_labels(axis, width))
    return lines


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


def _axis_labels(axis: ChartAxis, width: int) -> Line:
    left, right = axis.edges
    return Row().to(GUTTER).put(left, "dim").right(right, "dim", width).line(width)


Column = list[float | None]
"""A value for each bucket of a plot; None where nothing was measured."""


class _Values(NamedTuple):
    """Values of a curve to draw."""

    lows: Column
    means: Column
    highs: Column

    @property
    def is_line(self) -> bool:
        """True if there is no envelope around the means."""
        return self.lows is self.highs

    def known(self, *, is_log: bool) -> set[float]:
        """Values that the axis has to hold; on a logarithmic one a mean may be the least above 0."""
        columns = (self.means,) if self.is_line else tuple(self) if is_log else (self.lows, self.highs)
        return {value for column in columns for value in column if value is not None}


def _scaled(series: Series, grid: PlotGrid) -> _Values:
    by = series.scale
    if series.is_line or series.history is None:
        means: Column = [None] * grid.count if series.history is None else grid.means(series.history)
        if by != 1.0:
            means = [None if mean is None else mean * by for mean in means]
        return _Values(means, means, means)
    buckets = grid.buckets(series.history)
    lows, means, highs = (
        [None if bucket is None else bucket[i] * by for bucket in buckets] for i in range(len(Bucket._fields))
    )
    return _Values(lows, means, highs)


class _Canvas:
    """Cells with a bit set each (braille) or a character each (ASCII)."""

    def __init__(self, columns: int, height: int, scale: Scale, glyphs: Glyphs) -> None:
        self._height = height
        self._rows = height * (4 if glyphs.braille else 1)
        self._scale = scale
        self._highest = self._rows - 1
        # What `Scale.share` computes: a method's call for every bucket of every curve takes longer than that.
        self._bottom, self._span, self._is_log = scale.bottom, scale.top - scale.bottom, scale.is_log
        self._braille = glyphs.braille
        self._per_cell = 2 if glyphs.braille else 1
        self._bits = [[0] * columns for _ in range(height)]
        self._styles = [["faint"] * columns for _ in range(height)]
        self._under = [[" "] * columns for _ in range(height)]
        self._dots = [0] * (columns * self._per_cell)
        """Dots of the present pen, a number per column of dots: bit 0 is the lowest row."""
        self._pen = ("", "")
        self._over: dict[int, dict[int, StyledText]] = {}
        """Marks by line and column."""
        self._rule = glyphs.rule if glyphs.braille else "-"
        self._bar = glyphs.bar
        self._cursor: int | None = None

    def _level(self, value: float) -> int:
        """Dot row from the bottom."""
        if self._is_log:
            return round(self._scale.share(value) * self._highest)
        return round((value - self._bottom) / self._span * self._highest)

    def _line_of(self, value: float) -> int:
        """Line of text, from the top."""
        return self._height - 1 - self._level(value) * self._height // self._rows

    def limit(self, value: float, style: str) -> None:
        """A broken rule with the name of its severity at the left."""
        if not self._scale.bottom <= value <= self._scale.top:
            return
        y = self._line_of(value)
        columns = len(self._under[y])
        for x in range(0, columns, 2):
            self._under[y][x] = self._rule
            self._styles[y][x] = style
        if columns > 4 * _LIMIT_LABEL:
            for x, character in enumerate(f"{severity_label(style):<{_LIMIT_LABEL}}"):
                self._under[y][x], self._styles[y][x] = character, style

    def rule_column(self, x: int) -> None:
        if 0 <= x < len(self._under[0]):
            self._cursor = x

    def curve(self, values: _Values, style: str, dot: str) -> None:
        """Draw it over what is there, each column joined to the one before."""
        if (style, dot) != self._pen:
            self._settle()
            self._pen = (style, dot)
        if values.is_line:
            self._line_curve(values.means)
            return
        dots, level = self._dots, self._level
        low_before = high_before = -1
        for i, (lowest, highest) in enumerate(zip(values.lows, values.highs, strict=True)):
            if lowest is None or highest is None:
                low_before = high_before = -1
                continue
            low = level(lowest)
            high = level(highest) if highest != lowest else low
            first, last = low, high
            if low_before >= 0:
                first = min(low, high_before)
                last = max(high, low_before)
            dots[i] |= (2 << last) - (1 << first)
            low_before, high_before = low, high

    def _line_curve(self, means: Column) -> None:
        """Draw a curve without an envelope; fast, since hundreds of them may lie over each other."""
        dots, level = self._dots, self._level
        bottom, span, top = self._bottom, self._span, self._highest
        is_log = self._is_log
        before: float | None = None
        at = -1
        for i, mean in enumerate(means):
            if mean is None:
                at = -1
            elif at >= 0 and mean == before:
                dots[i] |= 1 << at
            else:
                was = at
                at = level(mean) if is_log else round((mean - bottom) / span * top)
                if was < 0 or was == at:
                    dots[i] |= 1 << at
                else:
                    dots[i] |= (2 << at) - (1 << was) if was < at else (2 << was) - (1 << at)
                before = mean

    def _settle(self) -> None:
        """Put what the present pen has drawn into the cells."""
        style, dot = self._pen
        per_line = 4 if self._braille else 1
        for i, dots in enumerate(self._dots):
            x, y = i // self._per_cell, self._height
            while dots:
                y -= 1
                part = dots & ((1 << per_line) - 1)
                dots >>= per_line
                if part:
                    self._bits[y][x] = (
                        self._bits[y][x] | _PATTERNS[i % 2][part] if self._braille else ord(dot)
                    )
                    self._styles[y][x] = style
            self._dots[i] = 0

    def mark(self, means: Column, text: str, style: str, phase: int) -> None:
        """Write the curve's name on it at regular distances of absolute time."""
        columns = len(self._under[0])
        for x in range(columns - len(text)):
            if (phase + x - columns) % MARK_DISTANCE == 0:
                self._write(means, x, text, style)

    def mark_end(self, means: Column, text: str, style: str) -> None:
        """Write the curve's name where it ends, or where there is room a little before."""
        last = max((i for i, mean in enumerate(means) if mean is not None), default=-1)
        end = last // self._per_cell - len(text)
        for x in range(end, max(-1, end - 24), -len(text) - 1):
            if self._write(means, x, text, style):
                return

    def _write(self, means: Column, x: int, text: str, style: str) -> bool:
        mean = means[x * self._per_cell]
        if mean is None:
            return False
        y = self._line_of(mean)
        written = self._over.setdefault(y, {})
        if any(column in written for column in range(x - 1, x + len(text) + 1)):
            return False
        written.update({x + i: (character, style) for i, character in enumerate(text)})
        return True

    def line(self, y: int) -> Line:
        self._settle()
        styles = self._styles[y][:]
        first = _BRAILLE if self._braille else 0
        cells = [
            chr(first + bits) if bits else under
            for bits, under in zip(self._bits[y], self._under[y], strict=True)
        ]
        if self._cursor is not None:
            is_free = not self._bits[y][self._cursor]
            styles[self._cursor] = "focus" if is_free else "key"
            cells[self._cursor] = self._bar if is_free else cells[self._cursor]
        for x, (text, style) in self._over.get(y, {}).items():
            cells[x], styles[x] = text, style
        return _spans(cells, styles)


def _spans(cells: list[str], styles: list[str]) -> Line:
    """Cells of one style in a row as one span."""
    spans: list[StyledText] = []
    begin = 0
    for x in range(1, len(cells) + 1):
        if x == len(cells) or styles[x] != styles[begin]:
            spans.append(("".join(cells[begin:x]), styles[begin]))
            begin = x
    return tuple(spans)
