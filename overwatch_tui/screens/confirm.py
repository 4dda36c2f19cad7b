"""The question before every command: `y` confirms, any other key cancels."""

from __future__ import annotations

import textwrap

from textual import events

from esper_overwatch.overwatch_tui.render.lines import Line, Row
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme

from .box import BoxScreen

MAX_LINES = 8
"""Most lines of the question, and of its consequence: the box has to fit 24 lines."""


class ConfirmScreen(BoxScreen[bool]):
    """A box in the middle; ends with True or False.

    Args:
        question: what would be done, in one line.
        detail: what follows from it.
        theme: for the box.
        glyphs: for its frame.
    """

    MAX_WIDTH = 62
    is_read_first = True
    """A key that was typed before it was there does not answer it."""

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
