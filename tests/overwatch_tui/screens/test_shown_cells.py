"""What is sent of a frame makes a terminal show all of it, whatever it showed before."""

from __future__ import annotations

from typing import Any

import pyte
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from esper_overwatch.overwatch_tui.screens.shown_cells import ShownCells

WIDTH, HEIGHT = 60, 9
STYLES = [
    Style.parse(text)
    for text in ("", "color(75)", "bold color(75)", "color(247)", "on color(235)", "bold", "reverse")
]
STYLES += [
    Style.parse("color(247) on color(235)"),
    Style.parse("underline"),
    Style.parse("default on default"),
]

Frame = list[list[Segment]]
segments = st.builds(
    Segment,
    st.one_of(st.text("ab⣿│ ", min_size=1, max_size=12), st.integers(1, 40).map(" ".__mul__)),
    st.sampled_from([None, *STYLES]),
    st.none(),
)
lines = st.lists(segments, max_size=20).map(lambda line: list(Strip(line).adjust_cell_length(WIDTH)))


@st.composite
def next_frames(draw: st.DrawFn, frame: Frame) -> Frame:
    """The frame with lines replaced, parts of lines moved, and lines moved up or down."""
    found = []
    by = draw(st.integers(-HEIGHT, HEIGHT))
    if by:
        begin = draw(st.integers(0, HEIGHT - 1))
        end = draw(st.integers(begin + 1, HEIGHT))
        others = [draw(lines) for _ in range(min(abs(by), end - begin))]
        kept = frame[begin + max(0, by) : end + min(0, by)] if len(others) < end - begin else []
        moved = [*kept, *others] if by > 0 else [*others, *kept]
        frame = [*frame[:begin], *moved, *frame[end:]]
    for line in frame:
        kind = draw(st.sampled_from(["same", "other", "moved"]))
        if kind == "other":
            line = draw(lines)
        elif kind == "moved":
            begin = draw(st.integers(0, WIDTH - 1))
            end, by = draw(st.integers(begin + 1, WIDTH)), draw(st.integers(1, 3))
            cut = Strip(line)
            parts = [
                cut.crop(0, begin),
                cut.crop(min(end, begin + by), end),
                Strip(draw(lines)),
                cut.crop(end),
            ]
            parts[2] = parts[2].crop(
                0, WIDTH - sum(part.cell_length for part in parts if part is not parts[2])
            )
            line = list(Strip.join(parts))
        found.append(line)
    return found


def visible_cells(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    """Every cell of a screen; of a blank only what can be seen."""
    found = []
    for y in range(screen.lines):
        row = []
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            seen = cell.reverse or cell.underscore
            row.append(
                (" ", cell.bg)
                if cell.data == " " and not seen
                else (cell.data, cell.fg, cell.bg, cell.bold, cell.reverse, cell.underscore)
            )
        found.append(row)
    return found


class Terminals:
    """One that is sent what differs, and for each frame a new one that is sent all of it."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.Stream(self.screen)
        self.shown = ShownCells()
        self.shown.resize(WIDTH, HEIGHT)

    def show(self, frame: Frame, begin: int = 0, **limits: Any) -> str:
        spans = []
        for y, line in enumerate(frame):
            spans.append((y, begin, list(Strip(line).crop(begin, WIDTH))))
        data = self.shown.update(spans, ColorSystem.TRUECOLOR, **limits)
        self._stream.feed(data)
        return data

    def fresh(self, frame: Frame) -> list[list[tuple[object, ...]]]:
        screen = pyte.Screen(WIDTH, HEIGHT)
        stream = pyte.Stream(screen)
        for y, line in enumerate(frame):
            stream.feed(f"\x1b[{y + 1};1H")
            for text, style, _ in line:
                stream.feed(Strip.render_style(style or Style.null(), text, ColorSystem.TRUECOLOR))
        return visible_cells(screen)


@given(st.data())
def test_any_frame_after_any_other_is_shown_whole(data: st.DataObject) -> None:
    terminals = Terminals()
    frame = data.draw(st.lists(lines, min_size=HEIGHT, max_size=HEIGHT))
    terminals.show(frame)
    assert visible_cells(terminals.screen) == terminals.fresh(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(next_frames(frame))
        terminals.show(frame)
        assert visible_cells(terminals.screen) == terminals.fresh(frame)
    assert terminals.show(frame) == ""


def curve(first: int, size: int) -> str:
    """Columns of a chart, by absolute time."""
    return "".join(
        chr(0x2800 + (column * 37 + column // 7) % 255 + 1) for column in range(first, first + size)
    )


def test_a_chart_that_moved_on_costs_little() -> None:
    terminals, style = Terminals(), Style.parse("color(74)")
    table = Segment("r17 ok │")
    for now in range(5):
        frame = [[table, Segment(curve(now, 40), style), Segment("│ 1234567890")]] * HEIGHT
        data = terminals.show(frame)
        assert visible_cells(terminals.screen) == terminals.fresh(frame)
    assert len(data.encode()) < HEIGHT * 40


def log(first: int) -> Frame:
    """Lines of a log, of which the first one is at the top."""
    texts = [
        f"08:53:{(37 * i) % 60:02} env{(11 * i) % 16:02} {i} " + "word" * (i % 5)
        for i in range(first, first + HEIGHT)
    ]
    return [list(Strip([Segment(text, STYLES[1])]).adjust_cell_length(WIDTH)) for text in texts]


def test_a_log_that_moved_on_costs_its_new_lines() -> None:
    terminals = Terminals()
    terminals.show(log(0))
    for first in (2, 3, 1):
        data = terminals.show(log(first))
        assert visible_cells(terminals.screen) == terminals.fresh(log(first))
        assert len(data) < 150


def test_what_has_no_room_is_told_and_sent_later() -> None:
    terminals = Terminals()
    frame = log(0)
    data = terminals.show(frame, room=120, rank=lambda y: -y)
    assert 0 < len(data) < 130
    assert terminals.screen.display[HEIGHT - 1].rstrip() == frame[-1][0].text.rstrip()
    assert terminals.shown.unsent >= HEIGHT - 4
    while terminals.shown.unsent:
        terminals.show(frame, room=120)
    assert visible_cells(terminals.screen) == terminals.fresh(frame)


def test_a_line_larger_than_the_room_is_sent_alone() -> None:
    terminals = Terminals()
    terminals.show(log(0), room=1)
    assert terminals.shown.unsent == HEIGHT - 1


def test_what_another_program_wrote_over_is_sent_again() -> None:
    terminals = Terminals()
    frame = [list(Strip([Segment("word")]).adjust_cell_length(WIDTH))] * HEIGHT
    terminals.show(frame)
    terminals.screen.erase_in_display(2)
    assert terminals.show(frame) == ""
    terminals.shown.forget()
    terminals.show(frame)
    assert visible_cells(terminals.screen) == terminals.fresh(frame)


def test_a_frame_of_a_taller_terminal_spoils_no_line() -> None:
    terminals = Terminals()
    terminals.show(log(0))
    terminals.screen.resize(5, WIDTH)
    terminals.shown.resize(WIDTH, 5)
    terminals.show(log(1))  # drawn for the former height
    frame = [*log(30)[:5]]
    terminals.show(frame)
    assert visible_cells(terminals.screen) == terminals.fresh(frame)[:5]


def test_erased_lines_are_taken_for_blank() -> None:
    terminals = Terminals()
    frame = [list(Strip([Segment("word")]).adjust_cell_length(WIDTH))] * HEIGHT
    terminals.show(frame)
    terminals.screen.reset_mode(1)
    terminals.screen.cursor_position(2, 1)
    terminals.screen.erase_in_display(0)
    terminals.shown.erase_from(1)
    blank = [frame[0], *[[Segment(" " * WIDTH)]] * (HEIGHT - 1)]
    assert terminals.show(blank) == ""
    terminals.show(frame)
    assert visible_cells(terminals.screen) == terminals.fresh(frame)


def test_a_part_of_a_line_is_sent_alone() -> None:
    terminals = Terminals()
    frame = [[Segment("a" * 20 + "b" * 40)]] * HEIGHT
    terminals.show(frame)
    changed = [[Segment("x" * 20 + "y" * 40)]] * HEIGHT
    terminals.show(changed, begin=20)
    assert "".join(cell.data for _, cell in sorted(terminals.screen.buffer[0].items())) == "a" * 20 + "y" * 40
