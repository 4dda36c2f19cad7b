"""The question before a command, in a box in the middle of the screen."""

from __future__ import annotations

import textwrap

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from esper_overwatch.overwatch_tui.render.lines import Line, Row, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme

from .line_widget import LinePanel

_ALWAYS_SHOWN = 2
"""Rows at the end: how to answer, and the border below it."""
_LEAST_WIDTH = 8
"""Least width of the rows: texts are not wrapped to fewer columns; a narrower terminal cuts them."""
MAX_WIDTH = 62
MAX_LINES = 8
"""Most lines of the question, and of its consequence: the box has to fit 24 lines."""


class ConfirmScreen(ModalScreen[bool]):
    """A question and its consequence; ends with True or False."""

    AUTO_FOCUS = ""
    is_read_first = True
    """A key that was typed before it appeared does not answer it."""

    def __init__(self, question: str, detail: str, theme: Theme, glyphs: Glyphs) -> None:
        super().__init__()
        self._texts = [(question, "bold"), (detail, "dim"), ("", "")]
        self._glyphs = glyphs
        self._panel = LinePanel(theme, id="confirm")

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_key(self, event: events.Key) -> None:
        if not self.is_current:
            return  # it was typed behind the key that closed the box, and is for what is under it
        event.stop()
        event.prevent_default()
        self.dismiss(event.key == "y")

    def on_resize(self) -> None:
        width, height = min(MAX_WIDTH, self.size.width), self.size.height
        lines = self._framed(self._rows(max(_LEAST_WIDTH, width - 4)), width)
        if len(lines) > height:
            lines = lines[: max(0, height - _ALWAYS_SHOWN)] + lines[-_ALWAYS_SHOWN:]
        self._panel.styles.width = width
        self._panel.styles.height = len(lines)
        self._panel.show_lines(lines)

    def _rows(self, width: int) -> list[Line]:
        cut = f" {self._glyphs.cut}"
        rows = [
            Row().put(part, style).line(width)
            for text, style in self._texts
            for part in textwrap.wrap(text, width, max_lines=MAX_LINES, placeholder=cut) or [""]
        ]
        answer = Row().put("y/N  ", "key").put("y confirms, any other key cancels", "dim")
        return [*rows, answer.line(width)]

    def _framed(self, rows: list[Line], width: int) -> list[Line]:
        rule, bar = self._glyphs.rule * (width - 2), self._glyphs.bar
        left, right, bottom_left, bottom_right = tuple(self._glyphs.corners)
        lines = [Row().put(left + rule + right, "box").line(width)]
        for row in rows:
            inner = Row().add(row).line(max(0, width - 4))
            lines.append(Row().put(f"{bar} ", "box").add(inner).put(f" {bar}", "box").line(width))
        lines.append(Row().put(bottom_left + rule + bottom_right, "box").line(width))
        return sign_cuts(lines, self._glyphs.cut)
