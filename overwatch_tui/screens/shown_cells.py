"""What the terminal shows, cell by cell: of a frame only what differs from it is sent.

Textual sends the changed lines of a widget whole, with every colour set and reset. A chart that moves on by a
column changes nearly all of its cells; where most of a line stands one or a few columns further on, the
terminal moves it itself (DCH, ICH), and what is left is sent. Blanks are erased (ECH, EL) where that is
shorter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

MAX_SHIFT = 2
"""Columns that a chart moves in a second at most, in all but the shortest windows."""
MIN_SHIFT_GAIN = 16
"""A part of a line is moved where so many cells more are right after it than before."""
MIN_ERASED = 10
"""Blanks in a row that are erased instead of written."""
MAX_REWRITTEN = 3
"""Cells that are right already and are written again, because moving the cursor is longer."""
_UNKNOWN = "\0"
_SAME_LOOK = re.compile(r"(.)\1*", re.DOTALL)
_BLANKS = re.compile(f"( {{{MIN_ERASED},}})")
_VISIBLE_BLANKS = frozenset("479")
"""Attributes that can be seen of a blank: underlined, reversed, struck."""


class Look(NamedTuple):
    """How a cell is drawn, as parameters of SGR."""

    attributes: str = ""
    colour: str = ""
    background: str = ""


_LOOKS = [Look()]
"""Those that there are: in lines each is one character, its place in here, which compares fast."""
PLAIN = chr(0)


def _enter(look: Look) -> str:
    if look not in _LOOKS:
        _LOOKS.append(look)
    return chr(_LOOKS.index(look))


@lru_cache(maxsize=4096)
def look_of(style: Style | None, system: ColorSystem) -> str:
    """The look of a style in what the terminal has of colours."""
    if style is None:
        return PLAIN
    names = ("bold", "dim", "italic", "underline", "blink", "blink2", "reverse", "conceal", "strike")
    attributes = ";".join(str(i) for i, name in enumerate(names, 1) if getattr(style, name))
    codes = []
    for colour, is_text in ((style.color, True), (style.bgcolor, False)):
        code = ";".join(colour.downgrade(system).get_ansi_codes(is_text)) if colour is not None else ""
        codes.append("" if code in ("39", "49") else code)
    return _enter(Look(attributes, *codes))


@lru_cache(maxsize=4096)
def _blank_of(look: str) -> str:
    """How a blank looks in it: by its background."""
    known = _LOOKS[ord(look)]
    is_visible = _VISIBLE_BLANKS & set(known.attributes)
    return look if is_visible else _enter(Look(background=known.background))


class _Looks(dict[int, str]):
    """The looks of the characters of a text, for `str.translate`."""

    def __init__(self, look: str) -> None:
        super().__init__({ord(" "): _blank_of(look)})
        self._look = look

    def __missing__(self, character: int) -> str:
        self[character] = self._look
        return self._look


_looks_in = lru_cache(maxsize=4096)(_Looks)


@lru_cache(maxsize=4096)
def _change(before: str, after: str) -> str:
    """What turns one look into another."""
    old, new = _LOOKS[ord(before)], _LOOKS[ord(after)]
    if old == new:
        return ""
    if not any(new):
        return "\x1b[m"
    if old.attributes != new.attributes:
        codes = [code for code in new if code]
        return f"\x1b[{';'.join(['0', *codes] if any(old) else codes)}m"
    parts = []
    if old.colour != new.colour:
        parts.append(new.colour or "39")
    if old.background != new.background:
        parts.append(new.background or "49")
    return f"\x1b[{';'.join(parts)}m"


class _Line:
    """Cells of one line."""

    __slots__ = ("looks", "text")

    def __init__(self, text: str, looks: str) -> None:
        self.text = text
        self.looks = looks

    def part(self, begin: int, end: int) -> _Line:
        return _Line(self.text[begin:end], self.looks[begin:end])

    def put(self, at: int, part: _Line) -> None:
        """Replace cells."""
        end = at + len(part.text)
        self.text = self.text[:at] + part.text + self.text[end:]
        self.looks = self.looks[:at] + part.looks + self.looks[end:]


def _blank(count: int) -> _Line:
    return _Line(" " * count, PLAIN * count)


class _Output:
    """Escape sequences, by where the cursor stands and how it draws."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._x, self._y = -1, -1
        self._look = PLAIN

    def move(self, x: int, y: int) -> None:
        if (x, y) == (self._x, self._y):
            return
        by = x - self._x
        if y == self._y and by > 0:
            self.parts.append("\x1b[C" if by == 1 else f"\x1b[{by}C")
        else:
            self.parts.append(f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H")
        self._x, self._y = x, y

    def look(self, look: str) -> None:
        self.parts.append(_change(self._look, look))
        self._look = look

    def write(self, text: str, look: str, width: int) -> None:
        """Write text of one look."""
        if not (text.isspace() and _blank_of(self._look) == look):
            self.look(look)
        self.parts.append(text)
        self._x += len(text)
        if self._x >= width:
            self._y = -1  # behind the last column terminals differ in where the cursor is

    def erase(self, count: int, width: int) -> None:
        """Blank so many cells from the cursor on."""
        if _blank_of(self._look) != PLAIN:
            self.look(PLAIN)
        self.parts.append("\x1b[K" if self._x + count >= width else f"\x1b[{count}X")

    def shift(self, begin: int, end: int, by: int, y: int) -> None:
        """Move cells to the left within [begin, end)."""
        self.look(PLAIN)
        count = "" if by == 1 else str(by)
        self.move(begin, y)
        self.parts.append(f"\x1b[{count}P")
        self.move(end - by, y)
        self.parts.append(f"\x1b[{count}@")

    def finish(self) -> str:
        self.look(PLAIN)
        return "".join(self.parts)


class ShownCells:
    """Remembers what was sent."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._width = self._height = 0

    def forget(self) -> None:
        """Somebody else may have written to the terminal, or it is another one."""
        self._lines.clear()

    def erase_from(self, y: int) -> None:
        """The lines from this one on are blank."""
        for each in range(y, self._height):
            self._lines[each] = _blank(self._width)

    def resize(self, width: int, height: int) -> None:
        """The terminal has so many columns and lines."""
        if (width, height) != (self._width, self._height):
            self._width, self._height = width, height
            self._lines.clear()

    def update(self, spans: Iterable[tuple[int, int, Sequence[Segment]]], system: ColorSystem) -> str:
        """What has to be written for spans of lines to be shown.

        Args:
            spans: line, column, and what begins there.
            system: the colours of the terminal.
        """
        output = _Output()
        for y, x, segments in spans:
            wanted = _cells(segments, system).part(0, self._width - x)
            line = self._lines.get(y)
            if line is None:
                line = self._lines[y] = _Line(_UNKNOWN * self._width, PLAIN * self._width)
            shown = line.part(x, x + len(wanted.text))
            if (shown.text, shown.looks) != (wanted.text, wanted.looks):
                self._update_span(output, y, x, shown, wanted)
                line.put(x, wanted)
        return output.finish()

    def _update_span(self, output: _Output, y: int, x: int, shown: _Line, wanted: _Line) -> None:
        changed = _changed(shown, wanted)
        shifts = _find_shifts(shown, wanted, changed)
        for begin, end, by in shifts:
            output.shift(x + begin, x + end, by, y)
            shown.put(begin, shown.part(begin + by, end))
            shown.put(end - by, _blank(by))
        for begin, end in _runs(_changed(shown, wanted) if shifts else changed, wanted.looks):
            self._write(output, y, x + begin, wanted.part(begin, end))

    def _write(self, output: _Output, y: int, x: int, part: _Line) -> None:
        """Write cells that differ, of whatever looks, in a row."""
        for found in _SAME_LOOK.finditer(part.looks):
            begin, end = found.span()
            look = found[0][0]
            pieces = _BLANKS.split(part.text[begin:end]) if look == PLAIN else [part.text[begin:end]]
            for piece in filter(None, pieces):
                output.move(x + begin, y)
                if look == PLAIN and _BLANKS.fullmatch(piece):
                    output.erase(len(piece), self._width)
                else:
                    output.write(piece, look, self._width)
                begin += len(piece)


def _cells(segments: Sequence[Segment], system: ColorSystem) -> _Line:
    """The characters of segments and the look of each."""
    looks = [text.translate(_looks_in(look_of(style, system))) for text, style, _ in segments]
    return _Line("".join([segment.text for segment in segments]), "".join(looks))


def _changed(shown: _Line, wanted: _Line) -> list[int]:
    """Columns that differ."""
    cells = zip(shown.text, wanted.text, shown.looks, wanted.looks, strict=True)
    return [i for i, (old, new, look, other) in enumerate(cells) if old != new or look != other]


def _runs(changed: list[int], looks: str) -> list[tuple[int, int]]:
    """From where to where cells differ; what is near each other and looks the same is one."""
    if not changed:
        return []
    found: list[tuple[int, int]] = []
    begin = last = changed[0]
    for i in changed:
        if i - last > 1 and (i - last > MAX_REWRITTEN + 1 or looks[last] * (i - last) != looks[last:i]):
            found.append((begin, last + 1))
            begin = i
        last = i
    return [*found, (begin, last + 1)]


def _find_shifts(shown: _Line, wanted: _Line, changed: list[int]) -> list[tuple[int, int, int]]:
    """Parts of a line that stand further to the left in the wanted one: (begin, end, columns)."""
    best: list[tuple[int, int, int]] = []
    most = 0
    for by in range(1, MAX_SHIFT + 1):
        old, new = shown.text[by:] + _UNKNOWN * by, wanted.text
        if sum([old[i] == new[i] for i in changed]) < MIN_SHIFT_GAIN:
            continue
        gains = [
            (moved == after) - (before == after)
            for moved, before, after in zip(old, shown.text, new, strict=True)
        ]
        parts = _best_parts(gains)
        total = sum(gain for _, _, gain in parts)
        if total > most:
            best, most = [(begin, end + by, by) for begin, end, _ in parts], total
    return best


def _best_parts(gains: list[int]) -> list[tuple[int, int, int]]:
    """(begin, end, gain) of the parts that gain enough, from left to right.

    A part ends where what follows has lost as much again as one must gain.
    """
    found: list[tuple[int, int, int]] = []
    total = most = begin = end = 0
    for i, gain in enumerate([*gains, -len(gains) - 1]):
        total += gain
        if total > most:
            most, end = total, i + 1
        elif total < 0 or total <= most - MIN_SHIFT_GAIN:
            if most >= MIN_SHIFT_GAIN:
                found.append((begin, end, most))
            total = most = 0
            begin = i + 1
    return found


class DifferenceUpdate(CompositorUpdate):
    """What differs from the cells that are shown, of an update that Textual would send."""

    def __init__(self, update: ChopsUpdate | LayoutUpdate, shown: ShownCells) -> None:
        self._update = update
        self._shown = shown

    def render_segments(self, console: Console) -> str:
        """What has to be written."""
        system = console._color_system or ColorSystem.TRUECOLOR
        spans = _spans_of(self._update)
        return self._shown.update(spans, system)


def _spans_of(update: ChopsUpdate | LayoutUpdate) -> Iterable[tuple[int, int, Sequence[Segment]]]:
    """(line, column, what begins there) of an update."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            yield y, update.region.x, [segment for strip in strips for segment in strip]
        return
    for y, x1, x2 in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is not None and x < x2 and end > x1:
                begin = max(x, x1)
                yield y, begin, _crop(strip, begin - x, min(end, x2) - x)


def _crop(strip: Strip, begin: int, end: int) -> Sequence[Segment]:
    return list(strip if (begin, end) == (0, strip.cell_length) else strip.crop(begin, end))
