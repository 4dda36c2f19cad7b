"""Boxes in the middle of the screen: their base, and the question before a command."""

from __future__ import annotations

import textwrap
from typing import TypeVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from esper_overwatch.overwatch_tui.render.lines import Line, Row, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme

from .line_widget import LinePanel

_Result = TypeVar("_Result")
_ALWAYS_SHOWN = 2
"""Rows at the end: how to answer, and the border below it."""
_LEAST_WIDTH = 8
"""Least width of the rows: texts are not wrapped to fewer columns; a narrower terminal cuts them."""


class BoxScreen(ModalScreen[_Result]):
    """Shows `rows` in a frame, as large as the terminal allows, and takes every key until it is closed."""

    AUTO_FOCUS = ""
    MAX_WIDTH = 72

    def __init__(self, theme: Theme, glyphs: Glyphs, id: str) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._panel = LinePanel(theme, id=id)

    def rows(self, width: int) -> list[Line]:
        """Rows within the frame, `width` columns wide; the last one tells how to answer."""
        raise NotImplementedError

    def take_key(self, event: events.Key) -> None:
        """Do what a key means in the box; the others mean nothing."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_resize(self) -> None:
        self.draw()

    def on_key(self, event: events.Key) -> None:
        if not self.is_current:
            return  # it was typed behind the key that closed the box, and is for what is under it
        event.stop()
        event.prevent_default()
        self.take_key(event)
        if self.is_attached and self.is_current:
            self.draw()

    def draw(self) -> None:
        width, height = min(self.MAX_WIDTH, self.size.width), self.size.height
        lines = _framed(self.rows(max(_LEAST_WIDTH, width - 4)), self._glyphs, width)
        if len(lines) > height:
            lines = lines[: max(0, height - _ALWAYS_SHOWN)] + lines[-_ALWAYS_SHOWN:]
        self._panel.styles.width = width
        self._panel.styles.height = len(lines)
        self._panel.show_lines(lines)


MAX_LINES = 8
"""Most lines of the question, and of its consequence: the box has to fit 24 lines."""


class ConfirmScreen(BoxScreen[bool]):
    """A question and its consequence; ends with True or False."""

    MAX_WIDTH = 62
    is_read_first = True
    """A key that was typed before it appeared does not answer it."""

    def __init__(self, question: str, detail: str, theme: Theme, glyphs: Glyphs) -> None:
        super().__init__(theme, glyphs, "confirm")
        self._texts = [(question, "bold"), (detail, "dim"), ("", "")]

    def take_key(self, event: events.Key) -> None:
        self.dismiss(event.key == "y")

    def rows(self, width: int) -> list[Line]:
        cut = f" {self._glyphs.cut}"
        rows = [
            Row().put(part, style).line(width)
            for text, style in self._texts
            for part in textwrap.wrap(text, width, max_lines=MAX_LINES, placeholder=cut) or [""]
        ]
        answer = Row().put("y/N  ", "key").put("y confirms, any other key cancels", "dim")
        return [*rows, answer.line(width)]


def _framed(rows: list[Line], glyphs: Glyphs, width: int) -> list[Line]:
    left, right, bottom_left, bottom_right = tuple(glyphs.corners)
    lines = [Row().put(left + glyphs.rule * (width - 2) + right, "box").line(width)]
    for row in rows:
        inner = Row().add(row).line(max(0, width - 4))
        lines.append(Row().put(f"{glyphs.bar} ", "box").add(inner).put(f" {glyphs.bar}", "box").line(width))
    lines.append(Row().put(bottom_left + glyphs.rule * (width - 2) + bottom_right, "box").line(width))
    return sign_cuts(lines, glyphs.cut)
