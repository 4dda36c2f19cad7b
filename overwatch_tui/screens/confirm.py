"""The question before every command: `y` confirms, any other key cancels."""

from __future__ import annotations

import textwrap

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from overwatch_tui.render.lines import Line, Row
from overwatch_tui.render.theme import Glyphs, Theme

from .line_widget import LinePanel

WIDTH = 62
MAX_LINES = 8
"""Of the question, and of what follows from it: the box has to fit 24 lines."""


class ConfirmScreen(ModalScreen[bool]):
    """A box in the middle; ends with True or False.

    Args:
        question: what would be done, in one line.
        detail: what follows from it.
        theme: for the box.
        glyphs: for its frame.
    """

    AUTO_FOCUS = ""
    is_read_first = True
    """A key that was typed before it was there does not answer it."""

    def __init__(self, question: str, detail: str, theme: Theme, glyphs: Glyphs) -> None:
        super().__init__()
        self._panel = LinePanel(theme, id="confirm")
        self._lines = box([(question, "bold"), (detail, "dim"), ("", "")], glyphs)

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_mount(self) -> None:
        self._panel.styles.width = WIDTH
        self._panel.styles.height = len(self._lines)
        self._panel.show_lines(self._lines)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(event.key == "y")


def box(texts: list[tuple[str, str]], glyphs: Glyphs) -> list[Line]:
    """The texts, and how to answer, in a frame."""
    left, right, bottom_left, bottom_right = tuple(glyphs.corners)
    inner = WIDTH - 4
    lines = [Row().put(left + glyphs.rule * (WIDTH - 2) + right, "box").line(WIDTH)]
    answer = Row().put("y/N  ", "key").put("y confirms, any other key cancels", "dim").line(inner)
    rows = [
        Row().put(part, style).line(inner)
        for text, style in texts
        for part in textwrap.wrap(text, inner, max_lines=MAX_LINES, placeholder=f" {glyphs.cut}") or [""]
    ]
    for row in (*rows, answer):
        lines.append(Row().put(f"{glyphs.bar} ", "box").add(row).put(f" {glyphs.bar}", "box").line(WIDTH))
    lines.append(Row().put(bottom_left + glyphs.rule * (WIDTH - 2) + bottom_right, "box").line(WIDTH))
    return lines
