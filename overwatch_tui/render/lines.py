"""Lines of styled text: what every panel makes, whether a terminal or a file shows them.

A line is a tuple of (text, style) spans. Styles are names that `theme` turns into colours, so a panel knows
neither Rich nor Textual, two frames compare with `==`, and `--once` prints the same lines as plain text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from esper_overwatch.protocol.codec.text import clean_cells

StyledText = tuple[str, str]
Line = tuple[StyledText, ...]

EMPTY: Line = ()
CUT = "…"
"""Stands at the end of what is longer than its room; see `sign_cuts` for terminals that cannot show it."""


class Row:
    """Builds a line column by column.

    >>> plain(Row().put("acc", "dim", 6).put("71.4", "bold", 6, ">").line(12))
    'acc     71.4'
    """

    def __init__(self, base: str = "") -> None:
        self.spans: list[StyledText] = []
        self.width = 0
        self._base = base

    def put(self, text: str, style: str = "", width: int | None = None, align: str = "<") -> Row:
        """Append text, cut and padded to `width` columns where one is given."""
        text = clean_cells(text)
        if width is not None:
            text = f"{cut_text(text, width):{align}{width}}" if width > 0 else ""
        if text:
            self.spans.append((text, f"{self._base} {style}".strip() if self._base else style))
            self.width += len(text)
        return self

    def add(self, line: Line) -> Row:
        for text, style in line:
            self.put(text, style)
        return self

    def to(self, column: int, fill: str = " ", style: str = "") -> Row:
        """Fill up to a column."""
        if column > self.width:
            self.put(fill * (column - self.width), style)
        return self

    def right(self, text: str, style: str, column: int, fill: str = " ", fill_style: str = "") -> Row:
        """Put text so that it ends at `column`; leave it out where it would touch what is there."""
        if text and self.width + len(text) + 1 <= column:
            self.to(column - len(text), fill, fill_style)
            self.put(text, style)
        return self

    def line(self, width: int, *, selected: bool = False) -> Line:
        """The line, cut and padded to exactly `width` columns; highlighted where it is selected."""
        line = fit(tuple(self.spans), width, self._base)
        return tuple((text, f"{style} select".strip()) for text, style in line) if selected else line


def cut_text(text: str, width: int) -> str:
    """At most `width` columns of a text, with a sign at the end where anything but blanks is left out."""
    if len(text) <= width:
        return text
    if width <= 0:
        return ""
    return text[: width - 1] + CUT if text[width:].strip() else text[:width]


def fit(line: Line, width: int, style: str = "") -> Line:
    """Cut or pad a line to exactly `width` columns, and join neighbours of one style."""
    spans: list[StyledText] = []
    left = width
    is_cut = False
    for text, span_style in line:
        if len(text) > left:
            is_cut = is_cut or bool(text[left:].strip())
            text = text[:left]
        left -= len(text)
        if spans and spans[-1][1] == span_style:
            spans[-1] = (spans[-1][0] + text, span_style)
        elif text:
            spans.append((text, span_style))
    if left > 0:
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + " " * left, style)
        else:
            spans.append((" " * left, style))
    elif is_cut and spans:
        spans[-1] = (spans[-1][0][:-1] + CUT, spans[-1][1])
    return tuple(spans)


def sign_cuts(lines: Sequence[Line], sign: str) -> list[Line]:
    """Replace the sign at the end of cut texts."""
    if sign == CUT:
        return list(lines)
    return [tuple((text.replace(CUT, sign), style) for text, style in line) for line in lines]


def block(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """Exactly `height` lines of `width` columns."""
    fitted = [line if width_of(line) == width else fit(line, width) for line in lines[:height]]
    return fitted + [fit(EMPTY, width)] * (height - len(fitted))


def wrapped(
    text: str, width: int, style: str = "", *, label: str = "", column: int = 3, is_whole: bool = False
) -> list[Line]:
    """A text on as many lines as it takes, behind a label of `column` columns.

    Args:
        is_whole: broken anywhere, as for a path that is to be copied; else between words.
    """
    room = max(10, width - column - (not is_whole))
    parts: list[str] = []
    for line in text.splitlines() or [""]:
        pieces = [line[i : i + room] for i in range(0, len(line), room)]
        parts += (pieces if is_whole else textwrap.wrap(line, room)) or [""]
    labels = [label, *[""] * (len(parts) - 1)]
    return [
        Row().put(name, "dim", column).put(part, style).line(width)
        for name, part in zip(labels, parts, strict=True)
    ]


def beside(blocks: Sequence[Sequence[Line]], pitch: int, width: int) -> list[Line]:
    """Blocks of equally many lines next to each other, each `pitch` columns after the one before."""
    lines = []
    for parts in zip(*blocks, strict=True):
        row = Row()
        for i, part in enumerate(parts):
            row.to(i * pitch).add(part)
        lines.append(row.line(width))
    return lines


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def fade(line: Line) -> Line:
    """Remove the colours: the text is out of date. Pictures stay as they are."""
    faded = [
        (text, style if style.startswith("pixels:") else "dim select" if "select" in style else "dim")
        for text, style in line
    ]
    return fit(tuple(faded), width_of(line))


def width_of(line: Line) -> int:
    """Columns of a line."""
    return sum([len(text) for text, _ in line])
