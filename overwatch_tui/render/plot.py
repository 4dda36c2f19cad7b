"""Plots as text: a sparkline, a chart in braille (or ASCII) and a gauge. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overwatch_tui.model.time_series import SECOND, Bucket, History

from .format import format_count
from .lines import Line, Row
from .theme import Glyphs

_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Braille bits of the left and right column of a cell, from the bottom up."""


MIN_AXIS_LINES = 7
"""Charts of so many lines have a time axis."""


class TimeAxis(NamedTuple):
    """The time that a plot spans, in microseconds."""

    now: int
    """Right edge."""
    window: int
    """From the left edge to the right one."""


def sparkline(
    history: History | None,
    width: int,
    axis: TimeAxis,
    glyphs: Glyphs,
    *,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """One line: the mean of each bucket as one of the glyphs' levels, scaled to what is shown.

    Args:
        history: the signal; None draws blanks.
        width: columns, one bucket each.
        axis: what time they span.
        glyphs: the character set.
        low: fixed lower end of the scale.
        high: fixed upper end.
    """
    if history is None or width <= 0:
        return " " * max(width, 0)
    buckets = history.buckets(axis.now, axis.window, width)
    means = [b.mean for b in buckets if b is not None]
    if not means:
        return " " * width
    bottom = min(means) if low is None else low
    top = max(means) if high is None else high
    levels = len(glyphs.spark)
    span = top - bottom
    if span <= 1e-9 * max(abs(top), abs(bottom), 1e-9):
        bottom, span = bottom - 1.0, 4.0

    def level(value: float) -> str:
        return glyphs.spark[min(levels - 1, max(0, int((value - bottom) / span * levels)))]

    return "".join(" " if b is None else level(b.mean) for b in buckets)


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
    history: History | None
    style: str = "chart"
    scale: float = 1.0


def chart(
    series: Sequence[Series],
    width: int,
    height: int,
    axis: TimeAxis,
    glyphs: Glyphs,
    *,
    limits: Sequence[tuple[float, str]] = (),
    floor: float | None = None,
    form: str = "{:.3g}",
) -> list[Line]:
    """Min/max envelopes over a common axis, `height` lines of `width` columns.

    Args:
        series: what to draw, the later ones on top.
        width: columns, with the axis labels.
        height: lines.
        axis: what time they span.
        glyphs: the character set.
        limits: (value, style) of threshold lines; drawn where they lie within the axis.
        floor: a value that the axis always holds, such as 0.
        form: how the axis writes its numbers.
    """
    gutter = 7
    columns = max(width - gutter, 1)
    labelled = height >= MIN_AXIS_LINES
    height -= labelled
    per_cell = 2 if glyphs.braille else 1
    drawn = [(s, _scaled(s, axis, columns * per_cell)) for s in series]
    known = [b for _, buckets in drawn for b in buckets if b is not None]
    if not known:
        return [((" " * gutter + "no data yet", "dim"),)] + [()] * (height + labelled - 1)
    bottom = min(b.low for b in known)
    top = max(b.high for b in known)
    if floor is not None:
        bottom, top = min(bottom, floor), max(top, floor)
    if top - bottom <= 1e-6 * max(abs(top), abs(bottom)):
        around = max(abs(top), 1.0) / 2
        bottom, top = bottom - around, top + around
    grid = _Grid(columns, height, bottom, top, glyphs)
    for value, style in limits:
        grid.limit(value, style)
    for s, buckets in drawn:
        grid.curve(buckets, s.style)
    labels = {0: top, height - 1: bottom}
    if height >= 5:
        labels[height // 2] = top - (top - bottom) * (height // 2) / (height - 1)
    lines = []
    for y in range(height):
        row = Row().put(_label(labels[y], form, gutter - 1) if y in labels else "", "dim", gutter - 1, ">")
        row.put(glyphs.bar, "rule")
        lines.append(row.add(grid.line(y)).line(width))
    if labelled:
        row = Row().to(gutter).put(f"-{_duration(axis.window)}", "dim")
        lines.append(row.right("now", "dim", width).line(width))
    return lines


def _label(value: float, form: str, width: int) -> str:
    """A number of the axis that is never cut: `2.4K` where `2.41e+03` does not fit."""
    rounded = f"{value:.2g}"
    in_thousands = format_count(value) if 1e3 <= abs(value) < 1e12 else rounded
    exponent = f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    texts = (form.format(value), in_thousands, rounded, exponent)
    return next((text for text in texts if len(text) <= width), exponent)


def _duration(microseconds: int) -> str:
    """`15m`, `6h`, `7d`: in the largest unit that divides it."""
    minutes = microseconds // (60 * SECOND)
    for size, unit in ((1440, "d"), (60, "h")):
        if minutes >= size and minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"


def _scaled(series: Series, axis: TimeAxis, count: int) -> list[Bucket | None]:
    if series.history is None:
        return [None] * count
    buckets = series.history.buckets(axis.now, axis.window, count)
    if series.scale == 1.0:
        return buckets
    return [
        None if b is None else Bucket(b.low * series.scale, b.mean * series.scale, b.high * series.scale)
        for b in buckets
    ]


class _Grid:
    """Cells with a bit set each (braille) or a character each (ASCII)."""

    def __init__(self, columns: int, height: int, bottom: float, top: float, glyphs: Glyphs) -> None:
        self._height = height
        self._rows = height * (4 if glyphs.braille else 1)
        self._bottom, self._span = bottom, top - bottom
        self._braille = glyphs.braille
        self._bits = [[0] * columns for _ in range(height)]
        self._styles = [["faint"] * columns for _ in range(height)]
        self._under = [[" "] * columns for _ in range(height)]
        self._rule = glyphs.rule if glyphs.braille else "-"

    def _level(self, value: float) -> int:
        """Dot row from the bottom."""
        return round((value - self._bottom) / self._span * (self._rows - 1))

    def limit(self, value: float, style: str) -> None:
        if not 0 <= (value - self._bottom) / self._span <= 1:
            return
        y = self._height - 1 - self._level(value) * self._height // self._rows
        for x in range(0, len(self._under[y]), 2):
            self._under[y][x] = self._rule
            self._styles[y][x] = style

    def curve(self, buckets: list[Bucket | None], style: str) -> None:
        before: Bucket | None = None
        for i, bucket in enumerate(buckets):
            if bucket is None:
                before = None
                continue
            low, high = bucket.low, bucket.high
            if before is not None:
                low, high = min(low, before.high), max(high, before.low)
            for level in range(self._level(low), self._level(high) + 1):
                self._set(i, level, style)
            before = bucket

    def _set(self, i: int, level: int, style: str) -> None:
        if self._braille:
            x, y = i // 2, self._height - 1 - level // 4
            self._bits[y][x] |= _DOTS[i % 2][level % 4]
        else:
            x, y = i, self._height - 1 - level
            self._bits[y][x] = 1
        self._styles[y][x] = style

    def line(self, y: int) -> Line:
        row = Row()
        for bits, style, under in zip(self._bits[y], self._styles[y], self._under[y], strict=True):
            if bits:
                row.put(chr(0x2800 + bits) if self._braille else "*", style)
            else:
                row.put(under, style)
        return tuple(row.spans)
