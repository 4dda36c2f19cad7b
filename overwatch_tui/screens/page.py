"""The answer to a query, over the whole screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Row, wrapped
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.protocol.codec.text import clean_text

from .line_widget import LinePanel


class AnswerScreen(ModalScreen[None]):
    """A query, and the lines of its answer; Esc closes it."""

    AUTO_FOCUS = ""
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "dismiss", id="step_back"),
        Binding("question_mark,f1", "dismiss", id="help"),
        Binding("q", "dismiss", id="leave"),
        Binding("enter", "dismiss", id="enter"),
        Binding("j,down", "scroll_by(1)", id="down"),
        Binding("k,up", "scroll_by(-1)", id="up"),
        Binding("pagedown", "scroll_by(15)", id="page_down"),
        Binding("pageup", "scroll_by(-15)", id="page_up"),
        Binding("g,home", "scroll_by(-100000)", id="first_row"),
        Binding("G", "scroll_by(100000)", id="last_row"),
        Binding("space", "scroll_by(15)"),
        Binding("end", "scroll_by(100000)"),
    ]

    def __init__(self, title: str, answer: Sequence[str], theme: Theme) -> None:
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
        lines = [head.line(width), EMPTY]
        for line in self._answer:
            lines += wrapped(clean_text(line), width, column=1, is_whole=True)
        self._top = max(0, min(self._top, len(lines) - height))
        self._panel.show_lines(lines[self._top : self._top + height])

    def action_scroll_by(self, rows: int) -> None:
        self._top += rows
        self.on_resize()
