"""The commands of a published run's own loop: one is chosen, then its parameters are typed."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

from textual import events

from esper_overwatch.overwatch_tui.model.loop_commands import OfferedCommand
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme

from .box import BoxScreen
from .input_line import pasted_text

MAX_ROWS = 12
"""Commands or parameters at a time; the others come into view with the selection."""
MAX_HELP_LINES = 3
MAX_TYPED = 4096
"""Characters of a parameter: the longest path that Linux takes."""


class LoopCall(NamedTuple):
    """The call to send."""

    method: str
    params: dict[str, Any]


class CallScreen(BoxScreen[LoopCall | None]):
    """A box in two steps: the list of commands, then the parameters of the chosen one."""

    def __init__(self, commands: list[OfferedCommand], run: str, theme: Theme, glyphs: Glyphs) -> None:
        super().__init__(theme, glyphs, "call")
        self._commands, self._run = commands, run
        self._at = 0
        self._chosen: OfferedCommand | None = None
        self._field = 0
        self._typed: dict[str, str] = {}
        self._error = ""

    @property
    def takes_chosen_keys(self) -> bool:
        """True in the list; where parameters are typed, a character is a character."""
        return self._chosen is None

    @property
    def types_text(self) -> bool:
        """True while parameters are typed."""
        return self._chosen is not None

    def take_key(self, event: events.Key) -> None:
        self._error = ""
        if self._chosen is None:
            self._on_list_key(event.key)
        else:
            self._on_form_key(self._chosen, event)

    def _on_list_key(self, key: str) -> None:
        if key in ("escape", "ctrl+c", "c", "q"):
            self.dismiss(None)
        elif key in ("j", "down", "tab"):
            self._at = min(self._at + 1, len(self._commands) - 1)
        elif key in ("k", "up", "shift+tab"):
            self._at = max(self._at - 1, 0)
        elif key in ("g", "home", "pageup"):
            self._at = 0
        elif key in ("G", "end", "pagedown"):
            self._at = len(self._commands) - 1
        elif key == "enter":
            self._chosen, self._field, self._typed = self._commands[self._at], 0, {}
            if not self._chosen.parameters:
                self._finish(self._chosen)

    def _on_form_key(self, chosen: OfferedCommand, event: events.Key) -> None:
        name = chosen.parameters[self._field].name
        text = self._typed.get(name, "")
        last = len(chosen.parameters) - 1
        if event.key in ("escape", "ctrl+c"):
            self._chosen = None
        elif event.key in ("down", "tab"):
            self._field = min(self._field + 1, last)
        elif event.key in ("up", "shift+tab"):
            self._field = max(self._field - 1, 0)
        elif event.key == "enter":
            self._finish(chosen)
        elif event.key == "backspace":
            self._typed[name] = text[:-1]
        elif event.key == "ctrl+u":
            self._typed[name] = ""
        elif event.is_printable and event.character:
            self._type(chosen, event.character)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        if self._chosen is not None and self.is_current:
            self._error = ""
            self._type(self._chosen, pasted_text(event))
            self.draw()

    def _type(self, chosen: OfferedCommand, text: str) -> None:
        name = chosen.parameters[self._field].name
        self._typed[name] = (self._typed.get(name, "") + text)[:MAX_TYPED]

    def _finish(self, chosen: OfferedCommand) -> None:
        try:
            params = chosen.params(self._typed)
        except ValueError as error:
            self._error = str(error)
        else:
            self.dismiss(LoopCall(chosen.name, params))

    def rows(self, width: int) -> list[Line]:
        return self._list(width) if self._chosen is None else self._form(self._chosen, width)

    def _list(self, inner: int) -> list[Line]:
        width = max(len(command.name) for command in self._commands) + 2
        lines = [Row().put(f"commands of {self._run}", "bold").line(inner), EMPTY]
        top = max(0, min(self._at - MAX_ROWS + 1, len(self._commands) - MAX_ROWS))
        for i, command in enumerate(self._commands[top : top + MAX_ROWS], top):
            row = Row().put(self._glyphs.cursor if i == self._at else " ", "focus").put(" ")
            row.put(command.name, "bold", width).put(f"{command.usage}  ", "accent").put(command.help, "dim")
            lines.append(row.line(inner, selected=i == self._at))
        return [*lines, EMPTY, _keys(("j k", "choose"), ("Enter", "go on"), ("Esc", "close")).line(inner)]

    def _form(self, chosen: OfferedCommand, inner: int) -> list[Line]:
        lines = [Row().put(chosen.name, "bold").line(inner)]
        about = textwrap.wrap(chosen.help, inner, max_lines=MAX_HELP_LINES, placeholder=self._glyphs.cut)
        lines += [Row().put(part, "dim").line(inner) for part in about]
        lines.append(EMPTY)
        width = max(len(one.name) for one in chosen.parameters) + 2
        top = max(0, min(self._field - MAX_ROWS + 1, len(chosen.parameters) - MAX_ROWS))
        for i, one in enumerate(chosen.parameters[top : top + MAX_ROWS], top):
            row = Row().put(self._glyphs.cursor if i == self._field else " ", "focus").put(" ")
            row.put(one.name, "bold", width)
            typed = self._typed.get(one.name, "")
            row.put(typed[-30:], "key").put("_" if i == self._field else "", "focus")
            default = f", {one.default!r} if left empty" if one.has_default else ", needed"
            lines.append(row.put(f"  {one.hint}{'' if typed else default}", "dim").line(inner))
        lines += [EMPTY, Row().put(self._error, "critical").line(inner)]
        return [*lines, _keys(("Tab", "next"), ("Enter", "go on"), ("Esc", "back")).line(inner)]


def _keys(*keys: tuple[str, str]) -> Row:
    row = Row()
    for key, name in keys:
        row.put(f"{key} ", "key").put(f"{name}  ", "dim")
    return row
