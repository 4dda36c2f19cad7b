"""The question in which form what is shown is to be written, and where it was written."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from textual import events

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme

from .box import BoxScreen

FORMS = {"c": "csv", "j": "json", "s": "svg", "t": "txt"}
"""The key and the file's suffix of each form."""
_NAMES = {"c": "CSV", "j": "JSON", "s": "SVG", "t": "text"}


class ExportScreen(BoxScreen[None]):
    """Asks for the form, writes, and shows the whole path.

    Args:
        title: what is written.
        write: takes the suffix; returns what is to be said.
        theme: for the box.
        glyphs: for its frame.
    """

    takes_chosen_keys = True
    own_keys = frozenset(FORMS)
    """These choose a form, whatever the operator has chosen them for elsewhere."""

    def __init__(self, title: str, write: Callable[[str], str], theme: Theme, glyphs: Glyphs) -> None:
        super().__init__(theme, glyphs, "export")
        self._title, self._write = title, write
        self.said = ""
        """Result of the export, in words."""

    def take_key(self, event: events.Key) -> None:
        if event.key in FORMS and not self.said:
            self.said = self._write(FORMS[event.key])
        elif event.key in ("escape", "ctrl+c", "enter", "q", "E"):
            self.dismiss(None)

    def rows(self, width: int) -> list[Line]:
        lines: list[Line] = [Row().put(f"export {self._title}", "bold").line(width), EMPTY]
        row = Row()
        if self.said:
            parts = textwrap.wrap(self.said, width, break_on_hyphens=False)
            lines += [Row().put(part).line(width) for part in parts]
            lines.append(EMPTY)
        else:
            for key, name in _NAMES.items():
                row.put(f"{key} ", "key").put(f"{name}   ")
        return [*lines, row.put("Esc ", "key").put("close", "dim").line(width)]
