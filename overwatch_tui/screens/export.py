"""The question in which form what is shown is to be written, and where it was written."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from overwatch_tui.render.lines import EMPTY, Line, Row
from overwatch_tui.render.theme import Glyphs, Theme

from .call import WIDTH, framed
from .line_widget import LinePanel

FORMS = {"c": "csv", "j": "json", "s": "svg", "t": "txt"}
"""The key and the file's suffix of each form."""
_NAMES = {"c": "CSV", "j": "JSON", "s": "SVG", "t": "text"}


class ExportScreen(ModalScreen[None]):
    """Asks for the form, writes, and shows the whole path.

    Args:
        title: what is written.
        write: takes the suffix; returns what is to be said.
        theme: for the box.
        glyphs: for its frame.
    """

    AUTO_FOCUS = ""
    takes_chosen_keys = True
    own_keys = frozenset(FORMS)
    """These choose a form, whatever the operator has chosen them for elsewhere."""

    def __init__(self, title: str, write: Callable[[str], str], theme: Theme, glyphs: Glyphs) -> None:
        super().__init__()
        self._title, self._write, self._glyphs = title, write, glyphs
        self._panel = LinePanel(theme, id="export")
        self.said = ""
        """What became of it."""

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_mount(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key in FORMS and not self.said:
            self.said = self._write(FORMS[event.key])
            self._draw()
        elif event.key in ("escape", "enter", "q", "E"):
            self.dismiss(None)

    def _draw(self) -> None:
        inner = WIDTH - 4
        lines: list[Line] = [Row().put(f"export {self._title}", "bold").line(inner), EMPTY]
        row = Row()
        if self.said:
            parts = textwrap.wrap(self.said, inner, break_on_hyphens=False)
            lines += [Row().put(part).line(inner) for part in parts]
            lines.append(EMPTY)
        else:
            for key, name in _NAMES.items():
                row.put(f"{key} ", "key").put(f"{name}   ")
        lines.append(row.put("Esc ", "key").put("close", "dim").line(inner))
        framed_lines = framed(lines, self._glyphs)
        self._panel.styles.width = WIDTH
        self._panel.styles.height = len(framed_lines)
        self._panel.show_lines(framed_lines)
