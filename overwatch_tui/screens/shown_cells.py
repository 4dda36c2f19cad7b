"""The terminal's cells as last sent: only cells of a frame that differ from them are written.

Textual sends the changed lines of a widget whole, with every colour set and reset. A chart that moves on by a
column changes nearly all of its cells; where most of a line stands one or a few columns further on, the
terminal moves it itself (DCH, ICH), and what is left is sent. Lines that stand higher or lower than before,
as in a log, are scrolled by it (DECSTBM, DL, IL). Blanks are erased (ECH, EL) where that is shorter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from operator import ne
from typing import NamedTuple

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate

MAX_SHIFT = 2
"""Columns that a chart moves in a second at most, in all but the shortest windows."""
MIN_SHIFT_GAIN = 16
"""Least number of correct cells that a shift of a part of a line has to gain."""
MIN_SCROLLED = 4
"""Least number of different lines that stand equally many lines higher or lower, for a scroll."""
MIN_SCROLL_GAIN = 32
"""Least number of correct cells that a scroll has to gain."""
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
    """Style of a cell, as parameters of SGR."""

    attributes: str = ""
    colour: str = ""
    background: str = ""


_LOOKS = [Look()]
"""All looks; a line holds the index of each as one character, which compares fast."""
_INDICES = {Look(): 0}
PLAIN = chr(0)


def _enter(look: Look) -> str:
    index = _INDICES.setdefault(look, len(_LOOKS))
    if index == len(_LOOKS):
        _LOOKS.append(look)
    return chr(index)


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
    """Look of a blank: its background."""
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
    """Escape sequence that turns one look into another."""
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

    @property
    def cells(self) -> tuple[str, str]:
        return self.text, self.looks

    def part(self, begin: int, end: int) -> _Line:
        return _Line(self.text[begin:end], self.looks[begin:end])

    def put(self, at: int, part: _Line) -> None:
        """Replace cells."""
        end = at + len(part.text)
        self.text = self.text[:at] + part.text + self.text[end:]
        self.looks = self.looks[:at] + part.looks + self.looks[end:]


_Span = tuple[int, int, _Line]
"""(line, column, cells)."""


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
        """Blank `count` cells from the cursor on."""
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

    def scroll(self, top: int, bottom: int, by: int) -> None:
        """Move the lines within [top, bottom) up, or down where it is negative."""
        self.look(PLAIN)
        turn = f"{by}M" if by > 0 else f"{-by}L"
        self.parts.append(f"\x1b[{top + 1};{bottom}r\x1b[{top + 1}H\x1b[{turn}\x1b[r")
        self._x, self._y = -1, -1

    def mark(self) -> tuple[int, int, int, str]:
        """Position for `undo`."""
        return len(self.parts), self._x, self._y, self._look

    def undo(self, mark: tuple[int, int, int, str]) -> None:
        """Take back what was written since."""
        count, self._x, self._y, self._look = mark
        del self.parts[count:]

    def count_bytes(self, begin: int = 0) -> int:
        """Bytes of the parts from one on."""
        return sum([len(part.encode()) for part in self.parts[begin:]])

    def finish(self) -> str:
        self.look(PLAIN)
        return "".join(self.parts)


class ShownCells:
    """Remembers what was sent."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._width = self._height = 0
        self.unsent = 0
        """Spans that the last update had no room for."""

    def forget(self) -> None:
        """Forget all cells: another program may have written to the terminal."""
        self._lines.clear()

    def erase_from(self, y: int) -> None:
        """The lines from this one on are blank."""
        for each in range(y, self._height):
            self._lines[each] = _blank(self._width)

    def resize(self, width: int, height: int) -> None:
        """Set the terminal's size."""
        if (width, height) != (self._width, self._height):
            self._width, self._height = width, height
            self._lines.clear()

    def update(
        self,
        spans: Iterable[tuple[int, int, Sequence[Segment]]],
        system: ColorSystem,
        room: int | None = None,
        rank: Callable[[int], object] | None = None,
    ) -> str:
        """Text that shows these spans of lines when written.

        Those for which there was no room are counted as `unsent`.

        Args:
            spans: line, column, and what begins there.
            system: the colours of the terminal.
            room: bytes that may be written, whatever the first span needs; None = no limit.
            rank: of a line; what comes first is written first.
        """
        output = _Output()
        wanted = [
            (y, x, _cells(segments, system).part(0, self._width - x))
            for y, x, segments in spans
            if y < self._height  # of a frame from before a resize: a terminal takes its last line for them
        ]
        wanted = self._scroll(output, wanted)
        if rank is not None:
            wanted.sort(key=lambda span: rank(span[0]))  # type: ignore[arg-type, return-value]
        self.unsent = 0
        left, is_first = room, True
        for y, x, cells in wanted:
            line = self._line(y)
            shown = line.part(x, x + len(cells.text))
            if shown.cells == cells.cells:
                continue
            if self.unsent:
                self.unsent += 1
                continue
            mark = output.mark()
            self._update_span(output, y, x, shown, cells)
            if left is not None:
                left -= output.count_bytes(mark[0])
                if left < 0 and not is_first:
                    output.undo(mark)
                    self.unsent += 1
                    continue
            is_first = False
            line.put(x, cells)
        return output.finish()

    def _line(self, y: int) -> _Line:
        line = self._lines.get(y)
        if line is None:
            line = self._lines[y] = _Line(_UNKNOWN * self._width, PLAIN * self._width)
        return line

    def _scroll(self, output: _Output, wanted: list[_Span]) -> list[_Span]:
        """Have lines moved that are wanted higher or lower; returns what is wanted after it."""
        complete: dict[int, _Line] = {}
        for y, x, cells in wanted:
            line = self._line(y)
            if y in complete or line.part(x, x + len(cells.text)).cells != cells.cells:
                complete.setdefault(y, line.part(0, self._width)).put(x, cells)
        if len(complete) < MIN_SCROLLED:
            return wanted
        found = _find_scroll(self._lines, complete)
        if found is None:
            return wanted
        top, bottom, by = found
        output.scroll(top, bottom, by)
        shown = [self._line(y) for y in range(top, bottom)]
        after = [complete.get(y) or line.part(0, self._width) for y, line in enumerate(shown, top)]
        blanks = [_blank(self._width) for _ in range(abs(by))]
        moved = [*shown[by:], *blanks] if by > 0 else [*blanks, *shown[:by]]
        self._lines.update(zip(range(top, bottom), moved, strict=True))
        others = [span for span in wanted if not top <= span[0] < bottom]
        return [*others, *[(y, 0, line) for y, line in enumerate(after, top)]]

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
    is_changed = map(ne, zip(*shown.cells, strict=True), zip(*wanted.cells, strict=True))
    return list(compress(range(len(wanted.text)), is_changed))


def _runs(changed: list[int], looks: str) -> list[tuple[int, int]]:
    """Runs (begin, end) of cells that differ; near ones of the same look are joined."""
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


def _find_scroll(shown: dict[int, _Line], wanted: dict[int, _Line]) -> tuple[int, int, int] | None:
    """(top, bottom, lines up) of the lines to scroll; only `wanted` are to change."""
    times = Counter(line.cells for line in shown.values())
    places = {line.cells: y for y, line in shown.items() if times[line.cells] == 1}
    moves = {y: places[line.cells] - y for y, line in wanted.items() if line.cells in places}
    if len(moves) < MIN_SCROLLED:
        return None
    by = Counter(moves.values()).most_common(1)[0][0]
    right = [y for y, move in moves.items() if move == by]
    top, bottom = min(right) + min(0, by), max(right) + max(0, by) + 1
    gain = 0
    for y in range(top, bottom):
        now = shown.get(y)
        after = wanted.get(y, now)
        if now is None or after is None:
            return None
        gain -= _count_same(now, after)
        if top <= y + by < bottom:
            gain += _count_same(shown.get(y + by), after)
    return (top, bottom, by) if gain >= MIN_SCROLL_GAIN else None


def _count_same(line: _Line | None, other: _Line) -> int:
    """Cells that are the same but for blanks, which cost little."""
    if line is None:
        return 0
    cells = zip(line.text, other.text, line.looks, other.looks, strict=True)
    return sum([a == b != " " and look == its for a, b, look, its in cells])


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
    """The difference between an update of Textual's and the cells that are shown.

    Args:
        room: bytes that may be sent; None = no limit.
        rank: of a line; what comes first is sent first.
    """

    def __init__(
        self,
        update: ChopsUpdate | LayoutUpdate,
        shown: ShownCells,
        room: int | None = None,
        rank: Callable[[int], object] | None = None,
    ) -> None:
        self._update = update
        self._shown = shown
        self._room, self._rank = room, rank

    def render_segments(self, console: Console) -> str:
        """Text to write."""
        system = console._color_system or ColorSystem.TRUECOLOR
        return self._shown.update(_spans_of(self._update), system, self._room, self._rank)


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
                part = begin - x, min(end, x2) - x
                yield y, begin, list(strip if part == (0, strip.cell_length) else strip.crop(*part))
