"""The answer to a query, as indented text."""

from __future__ import annotations

import json
from typing import Any

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.protocol.codec.text import clean_text

from .page import PageScreen


class AnswerScreen(PageScreen):
    """A title and the answer.

    Args:
        title: what was asked.
        answer: the result.
        theme: for the lines.
    """

    def __init__(self, title: str, answer: Any, theme: Theme) -> None:
        super().__init__(theme)
        self._title = title
        self._answer = answer

    def page(self, width: int) -> list[Line]:
        text = json.dumps(self._answer, indent=2, ensure_ascii=False, default=str)
        head = Row().put(f" {self._title} ", "title").put("  j k scroll, Esc closes", "dim")
        room = max(1, width - 2)
        lines = [head.line(width), EMPTY]
        for line in text.split("\n"):
            parts = [line[i : i + room] for i in range(0, max(1, len(line)), room)]
            lines += [Row().put(" ").put(clean_text(part)).line(width) for part in parts]
        return lines
