"""The cells of a chart, and those of earlier frames that can be shown again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.courses import Course
from esper_overwatch.overwatch_tui.model.time_series import Bucket

from .lines import Line, StyledText
from .scale import Scale
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
MARK_DISTANCE = 24
"""Columns between two marks of a curve, counted from its end."""
MAX_KEPT = 8
"""Charts that are kept in case the next frame has them again."""
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


Column = list[float | None]
"""A value for each bucket of a plot; None where nothing was measured."""


class CurveValues(NamedTuple):
    """Values of a curve to draw."""

    lows: Column
    means: Column
    highs: Column

    @property
    def is_line(self) -> bool:
        """True if only the means are drawn."""
        return self.lows is self.highs

    def known(self, *, is_log: bool) -> Sequence[float]:
        """Values that the axis has to hold; on a logarithmic one a mean may be the least above 0."""
        columns = (self.means,) if self.is_line else tuple(self) if is_log else (self.lows, self.highs)
        found = [value for column in columns for value in column if value is not None]
        return (min(found), max(found)) if found and not is_log else found

    @property
    def newest(self) -> int:
        """The last bucket with a value."""
        return next((i for i in reversed(range(len(self.means))) if self.means[i] is not None), 0)

    def is_same(self, before: CurveValues, *, moved: int, end: int) -> bool:
        """True if all earlier values up to a bucket are the same, some buckets further to the left."""
        left = max(0, end - moved)
        return self.lows[:left] == before.lows[moved:end] and (
            self.is_line or self.highs[:left] == before.highs[moved:end]
        )


class Canvas:
    """Cells with some bits each (braille) or a character each (ASCII)."""

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
        self._cells: list[list[StyledText | None]] = [[None] * columns for _ in range(height)]
        """What the bits look like; None where there are none."""
        self._dots = [0] * (columns * self._per_cell)
        """Dots of the present pen, a number per column of dots: bit 0 is the lowest row."""
        self._rule = glyphs.rule if glyphs.braille else "-"
        self._bar = glyphs.bar

    def begin(self, column: int, moved: int) -> None:
        """Move the curves to the left, and blank all but them before a column: `curve` draws the rest."""
        columns = len(self._bits[0])
        self._parts = [range(column * self._per_cell, columns * self._per_cell)]
        """Buckets to draw; the first one is joined to none before it any more."""
        if moved and column:
            self._parts.insert(0, range(self._per_cell))
        for bits, cells in zip(self._bits, self._cells, strict=True):
            bits[:] = bits[moved : moved + column] + [0] * (columns - column)
            cells[:] = cells[moved : moved + column] + [None] * (columns - column)
            if moved:
                bits[0], cells[0] = 0, None
        self._under = [[(" ", "faint")] * columns for _ in range(self._height)]
        self._over: dict[int, dict[int, StyledText]] = {}
        """Marks by line and column."""
        self._pen = ("", "")
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
            self._under[y][x] = self._rule, style
        if columns > 4 * _LIMIT_LABEL:
            for x, character in enumerate(f"{severity_label(style):<{_LIMIT_LABEL}}"):
                self._under[y][x] = character, style

    def rule_column(self, x: int) -> None:
        if 0 <= x < len(self._under[0]):
            self._cursor = x

    def curve(self, values: CurveValues, style: str, dot: str) -> None:
        """Draw it over what is there, each column joined to the one before."""
        if (style, dot) != self._pen:
            self._settle()
            self._pen = (style, dot)
        for part in self._parts:
            if values.is_line:
                self._draw_line(values.means, part)
            else:
                self._draw_envelope(values, part)

    def _draw_envelope(self, values: CurveValues, part: range) -> None:
        dots, level = self._dots, self._level
        low_before = high_before = -1
        begin = max(0, part.start - 1)
        ends = zip(values.lows[begin : part.stop], values.highs[begin : part.stop], strict=True)
        for i, (lowest, highest) in enumerate(ends, begin):
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

    def _draw_line(self, means: Column, part: range) -> None:
        """Draw a curve without an envelope; fast, since hundreds of them may lie over each other."""
        dots, level = self._dots, self._level
        bottom, span, top = self._bottom, self._span, self._highest
        is_log = self._is_log
        before: float | None = None
        at = -1
        begin = max(0, part.start - 1)
        for i, mean in enumerate(means[begin : part.stop], begin):
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
        for i in chain(*self._parts):
            x, y, dots = i // self._per_cell, self._height, self._dots[i]
            while dots:
                y -= 1
                part = dots & ((1 << per_line) - 1)
                dots >>= per_line
                if part and self._braille:
                    self._bits[y][x] |= _PATTERNS[i % 2][part]
                    self._cells[y][x] = chr(_BRAILLE + self._bits[y][x]), style
                elif part:
                    self._cells[y][x] = dot, style
        self._dots = [0] * len(self._dots)

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
        row = zip(self._cells[y], self._under[y], strict=True)
        cells = [cell or under for cell, under in row]
        if self._cursor is not None:
            is_free = self._cells[y][self._cursor] is None
            text = self._bar if is_free else cells[self._cursor][0]
            cells[self._cursor] = text, "focus" if is_free else "key"
        for x, mark in self._over.get(y, {}).items():
            cells[x] = mark
        by_style = groupby(cells, itemgetter(1))
        return tuple(("".join([text for text, _ in part]), style) for style, part in by_style)


Pen = tuple[int, str, str, str, bool]
"""(number, label, style, character in ASCII, without an envelope) of a curve."""


class ChartMemory:
    """Charts of the last frames, of which all but the newest columns can be shown again."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Canvas, list[CurveValues], int]] = {}

    def canvas(
        self,
        curves: Mapping[Pen, CurveValues],
        grid: PlotGrid,
        height: int,
        scale: Scale,
        glyphs: Glyphs,
    ) -> Canvas:
        """A canvas for these curves by their pens; it holds their first part where it was drawn before."""
        key = grid.columns, grid.dt, height, scale, glyphs.name, tuple(curves)
        now = list(curves.values())
        new = Canvas(grid.columns, height, scale, glyphs)
        canvas, before, end = self._kept.pop(key, (new, [], grid.end))
        moved = grid.end - end
        known = max((values.newest for values in before), default=0) // grid.per_cell * grid.per_cell
        if moved < 0 or not all(map(partial(CurveValues.is_same, moved=moved, end=known), now, before)):
            moved = known = 0
        canvas.begin(max(0, known - moved) // grid.per_cell, moved // grid.per_cell)
        self._kept[key] = canvas, now, grid.end
        for old in list(self._kept)[:-MAX_KEPT]:
            del self._kept[old]
        return canvas
