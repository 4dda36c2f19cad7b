"""The answer to a query, over the whole screen."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.screen import ModalScreen

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Row
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.protocol.codec.readable import format_result
from esper_overwatch.protocol.codec.text import clean_text

from .line_widget import LinePanel


class AnswerScreen(ModalScreen[None]):
    """A query, and its answer as lines of a name and a value; Esc closes it."""

    AUTO_FOCUS = ""
    takes_chosen_keys = True
    """True if the operator's own keys work here like the default ones."""
    BINDINGS = [  # noqa: RUF012
        ("escape,question_mark,f1,q,enter", "dismiss", ""),
        ("j,down", "scroll_by(1)", ""),
        ("k,up", "scroll_by(-1)", ""),
        ("pagedown,space", "scroll_by(15)", ""),
        ("pageup", "scroll_by(-15)", ""),
        ("g,home", "scroll_by(-100000)", ""),
        ("G,end", "scroll_by(100000)", ""),
    ]

    def __init__(self, title: str, answer: dict[str, Any], theme: Theme) -> None:
        super().__init__()
        self._panel = LinePanel(theme, id="page")
        self._title = title
        self._answer = answer
        self._top = 0
        """First line shown."""

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_resize(self) -> None:
        width, height = self.size
        head = Row().put(f" {self._title} ", "title").put("  j k scroll, Esc closes", "dim")
        room = max(1, width - 2)
        lines = [head.line(width), EMPTY]
        for line in format_result(self._answer):
            parts = [line[i : i + room] for i in range(0, max(1, len(line)), room)]
            lines += [Row().put(" ").put(clean_text(part)).line(width) for part in parts]
        self._top = max(0, min(self._top, len(lines) - height))
        self._panel.show_lines(lines[self._top : self._top + height])

    def action_scroll_by(self, rows: int) -> None:
        self._top += rows
        self.on_resize()
