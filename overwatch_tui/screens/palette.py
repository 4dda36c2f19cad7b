"""The palette: every action, setting, command and question by its name, searched and executed.

The help is the same list with the fields of the view above it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme

from .input_line import HEIGHT, InputLine

_NAME, _KEY = 25, 7
"""Columns."""
_MOVES = {"down": 1, "up": -1, "pagedown": 10, "pageup": -10, "home": -9999, "end": 9999}
"""Rows that a key moves by."""
_NO_ARROWS = str.maketrans("", "", "↓↑←→")


class PaletteRow(NamedTuple):
    """A row of the palette."""

    name: str
    about: str
    key: str = ""
    is_ready: bool = False
    """True if Enter executes it as it is; else it is completed, and what may follow is explained."""
    is_heading: bool = False
    is_field: bool = False
    """True for what the help explains, which nothing executes."""


class PaletteScreen(InputLine):
    """Ends with the line to execute, or with None.

    Args:
        entries: in the order in which they are listed; with headings it is the help, on all the screen.
        explain: this and what follows as in `InputLine`.
    """

    def __init__(
        self,
        entries: Sequence[PaletteRow],
        explain: Callable[[str], str],
        theme: Theme,
        glyphs: Glyphs,
        *,
        text: str,
        complete: Callable[[str], Sequence[str]],
        history: Sequence[str],
        check: Callable[[str], str],
    ) -> None:
        self._entries = list(entries)
        self._is_help = any(entry.is_heading for entry in self._entries)
        prompt = "search " if self._is_help else ":"
        super().__init__(
            prompt, explain, theme, glyphs, text=text, complete=complete, history=history, check=check
        )
        self._row: int | None = None
        """The row that was moved to; None = the first match of what is typed."""
        self._rows = 0
        """Lines of the list that fit."""
        self._top = 0
        """First line of the list that is shown."""

    @property
    def matches(self) -> list[PaletteRow]:
        """Entries that what is typed finds: by the name's beginning, by the name, by what it says."""
        words = self.text.lower().split()
        if not words:
            return self._entries
        if self._is_named or self.text.strip().isdecimal():
            return []

        def rank(entry: PaletteRow) -> int:
            name = entry.name.lower()
            if name.startswith(words[0]):
                return 0 if len(words) == 1 else 1
            return 1 if words[0] in name else 2

        found = [
            entry
            for entry in self._entries
            if not entry.is_heading and all(word in f"{entry.name} {entry.about}".lower() for word in words)
        ]
        return sorted(found, key=rank)

    @property
    def _is_named(self) -> bool:
        """True once a whole name is typed, and what follows it."""
        name, space, _ = self.text.lstrip().partition(" ")
        return bool(space) and any(entry.name == name and not entry.is_field for entry in self._entries)

    @property
    def _chosen(self) -> PaletteRow | None:
        """The row that Enter takes; None where the line is taken as it was typed."""
        found, text = self.matches, self.text.strip()
        if self._row is not None:
            return found[min(self._row, len(found) - 1)] if found else None
        is_whole = any(entry.name == text for entry in self._entries if not entry.is_field)
        return found[0] if found and text and not is_whole else None

    def _rows_above(self, height: int) -> int:
        self._rows = height - HEIGHT if self._is_help else max(3, min(height // 2, 24))
        return self._rows

    def _draw(self) -> None:
        width = self.size.width
        lines, at = self._list(width)
        self._top = max(0, min(self._top, at, len(lines) - self._rows), at - self._rows + 1)
        shown = lines[self._top : self._top + self._rows]
        shown += [EMPTY] * (self._rows - len(shown))
        self._panel.show_lines(sign_cuts([*shown, *self._bottom(width)], self._glyphs.cut))

    def _list(self, width: int) -> tuple[list[Line], int]:
        """Lines of all matches, and the index of the last line of the chosen one."""
        lines: list[Line] = []
        at, chosen = 0, self._chosen
        for entry in self.matches:
            selected = entry is chosen
            if entry.is_heading:
                lines.append(Row().put(f" {entry.name}", "bold").line(width))
                continue
            room = max(20, width - _NAME - (0 if entry.is_field else _KEY) - 3)
            parts = textwrap.wrap(entry.about, room) or [""]
            for i, part in enumerate(parts if self._is_help else parts[: 3 if selected else 1]):
                row = Row().put(self._glyphs.cursor if selected and not i else " ", "focus").put(" ")
                row.put("" if i else entry.name, "dim" if entry.is_field else "accent", _NAME)
                if not entry.is_field:
                    key = entry.key.translate(_NO_ARROWS) if self._glyphs.name == "ascii" else entry.key
                    row.put("" if i else key, "key", _KEY)
                lines.append(row.put(part, "" if selected else "dim").line(width, selected=selected))
            if selected:
                at = len(lines) - 1
        return lines, at

    def on_key(self, event: events.Key) -> None:
        by = _MOVES.get(event.key)
        if not self.is_current or by is None or (by < 0 and not self._row) or not self.matches:
            super().on_key(event)
            return
        event.stop()
        event.prevent_default()
        self._move(by)

    def _move(self, by: int) -> None:
        """Choose another row; headings are passed over."""
        found = self.matches
        at = -1 if self._row is None else self._row
        at = max(0, min(len(found) - 1, at + by))
        while found[at].is_heading and 0 < at + (step := 1 if by > 0 else -1) < len(found):
            at += step
        self._row = at
        self._draw()

    def _offers(self, width: int) -> Line:
        """What may follow a name; of names the list tells."""
        return super()._offers(width) if self._is_named or self._choices else EMPTY

    def _set(self, text: str) -> None:
        self._row, self._top = None, 0
        super()._set(text)

    def _next_choice(self, by: int) -> None:
        self._row = None
        super()._next_choice(by)

    def _take(self) -> None:
        chosen = self._chosen
        if chosen is None:
            super()._take()
            if self._problem and " " not in self.text:
                self.text += " "
                self._draw()
        elif not (chosen.is_field or chosen.is_heading):
            self._set(chosen.name if chosen.is_ready else f"{chosen.name} ")
            if chosen.is_ready:
                super()._take()
