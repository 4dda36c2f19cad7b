"""A line to type in; ends with the text, or None where Esc left it."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from overwatch_tui.render.lines import Line, Row
from overwatch_tui.render.theme import Glyphs, Theme

from .line_widget import LinePanel

WIDTH = 76
MAX_TEXT = 40


class PromptScreen(ModalScreen[str | None]):
    """A box with one line.

    Args:
        title: what is asked for.
        hint: what can be typed.
        theme: for the box.
        glyphs: for its frame.
    """

    AUTO_FOCUS = ""

    def __init__(self, title: str, hint: str, theme: Theme, glyphs: Glyphs) -> None:
        super().__init__()
        self._panel = LinePanel(theme, id="confirm")
        self._title = title
        self._hint = hint
        self._glyphs = glyphs
        self.text = ""
        """What has been typed."""

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_mount(self) -> None:
        self._panel.styles.width = WIDTH
        self._panel.styles.height = 4
        self._draw()

    def _draw(self) -> None:
        glyphs = self._glyphs
        left, right, bottom_left, bottom_right = tuple(glyphs.corners)
        inner = WIDTH - 4
        rows = [
            Row().put(f"{self._title}: ", "bold").put(f"{self.text}_", "key").line(inner),
            Row().put(self._hint, "dim").line(inner),
        ]
        lines: list[Line] = [Row().put(left + glyphs.rule * (WIDTH - 2) + right, "box").line(WIDTH)]
        for row in rows:
            lines.append(Row().put(f"{glyphs.bar} ", "box").add(row).put(f" {glyphs.bar}", "box").line(WIDTH))
        lines.append(Row().put(bottom_left + glyphs.rule * (WIDTH - 2) + bottom_right, "box").line(WIDTH))
        self._panel.show_lines(lines)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key == "escape":
            self.dismiss(None)
        elif event.key == "enter":
            self.dismiss(self.text)
        elif event.key == "backspace":
            self.text = self.text[:-1]
            self._draw()
        elif event.character is not None and event.is_printable and len(self.text) < MAX_TEXT:
            self.text += event.character
            self._draw()
