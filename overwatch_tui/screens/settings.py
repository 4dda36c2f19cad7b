"""The settings: each with its value, where that comes from and what it means; Enter changes it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from textual.app import ComposeResult
from textual.screen import ModalScreen

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme
from esper_overwatch.overwatch_tui.settings.sources import Chosen, Settings, write_setting
from esper_overwatch.overwatch_tui.settings.table import (
    SETTINGS,
    BadSetting,
    Setting,
    SettingValue,
    format_value,
)

from .input_line import InputLine
from .line_widget import LinePanel

_NAME, _VALUE = 12, 16
"""Columns."""


class SettingsScreen(ModalScreen[None]):
    """Lists and edits the settings.

    Args:
        settings: changed in place, and in its file.
        on_change: called with the name and the new value of a setting that shows at once.
        not_kept: why a change concerns this terminal only and the file stays as it is; empty = it is written.
    """

    AUTO_FOCUS = ""
    takes_chosen_keys = True
    BINDINGS = [  # noqa: RUF012
        ("escape,f2,q", "close", ""),
        ("j,down", "move(1)", ""),
        ("k,up", "move(-1)", ""),
        ("g,home", "move(-100)", ""),
        ("G,end", "move(100)", ""),
        ("enter", "choose", ""),
        ("l,right,space", "step(1)", ""),
        ("h,left", "step(-1)", ""),
        ("x,delete", "unset", ""),
    ]

    def __init__(
        self,
        settings: Settings,
        theme: Theme,
        glyphs: Callable[[], Glyphs],
        on_change: Callable[[str, SettingValue], None],
        *,
        not_kept: str,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._panel = LinePanel(theme, id="settings")
        self._theme = theme
        self._glyphs = glyphs
        self._on_change = on_change
        self._not_kept = not_kept
        self._at = 0
        self._message = ""

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_resize(self) -> None:
        self._draw()

    @property
    def _setting(self) -> Setting:
        return list(SETTINGS.values())[self._at]

    def action_move(self, by: int) -> None:
        self._at = max(0, min(len(SETTINGS) - 1, self._at + by))
        self._message = ""
        self._draw()

    def action_step(self, by: int) -> None:
        setting = self._setting
        value, choices = self._settings[setting.name], setting.choices
        at = choices.index(value) + by if value in choices else 0
        self._change(setting, choices[at % len(choices)])

    def action_choose(self) -> None:
        """The next value of the selected setting, or where it is any text, the line to type it in."""
        setting = self._setting
        if setting.read is None:
            self.action_step(1)
            return

        def check(text: str) -> str:
            try:
                setting.check(text.strip(), setting.name)
            except BadSetting as error:
                return str(error)
            return ""

        def take(text: str | None) -> None:
            if text is not None:
                self._change(setting, text.strip())

        value = format_value(self._settings[setting.name])
        line = InputLine(
            f"{setting.name} ",
            lambda _: f"{setting.help} {setting.allowed}",
            self._theme,
            self._glyphs(),
            text=value,
            check=check,
        )
        self.app.push_screen(line, take)

    def action_unset(self) -> None:
        self._change(self._setting, None)

    def action_close(self) -> None:
        self.dismiss()

    def _change(self, setting: Setting, value: SettingValue | None) -> None:
        before, settings = self._settings.chosen[setting.name], self._settings
        if self._not_kept and not setting.is_live:
            self._message = f"{self._not_kept}: {setting.name} is not changed"
            self._draw()
            return
        try:
            self._message = self._keep(setting.name, value, before)
        except BadSetting as error:
            self._message = str(error)
        else:
            if setting.is_live and settings[setting.name] != before.value:
                self._on_change(setting.name, settings[setting.name])
        self._draw()

    def _keep(self, name: str, value: SettingValue | None, before: Chosen) -> str:
        """Write the file and take over the value; says what happened."""
        settings = self._settings
        setting = SETTINGS[name]
        shown = setting.default if value is None else value
        source = "default" if value is None else "file"
        if self._not_kept:
            settings.chosen[name] = Chosen(shown, "this terminal")
            return f"{self._not_kept}: {name} = {format_value(shown)} in this terminal only"
        write_setting(settings.path, name, value)
        settings.chosen[name] = Chosen(shown, source)
        done = f"took {name} out of the file" if value is None else f"wrote {name} = {format_value(value)}"
        if before.source not in ("default", "file", "this terminal"):
            done += f"; the next start still has {before.source}, which is above the file"
        elif not setting.is_live:
            done += "; from the next start on"
        return done

    def _draw(self) -> None:
        width, height = self.size
        lines = settings_lines(self._settings, self._at, self._message, width, self._glyphs())
        self._panel.show_lines(lines[:height])


def settings_lines(settings: Settings, at: int, message: str, width: int, glyphs: Glyphs) -> list[Line]:
    """The screen: a line for each setting, then what the selected one means."""
    keys = "  j k choose, Enter or h l change, x default, Esc close"
    lines = [Row().put(" SETTINGS ", "title").put(keys, "dim").line(width), EMPTY]
    head = Row().put("   ").put("NAME", "dim", _NAME).put("VALUE", "dim", _VALUE).put("FROM", "dim")
    lines.append(head.line(width))
    for i, (name, setting) in enumerate(SETTINGS.items()):
        value, source = settings.chosen[name]
        row = Row().put(f" {glyphs.cursor if i == at else ' '} ", "focus").put(name, "bold", _NAME)
        row.put(format_value(value), "key" if value != setting.default else "", _VALUE).put(source, "dim")
        lines.append(row.line(width, selected=i == at))
    remapped = ", ".join(settings.remapped) or "none"
    lines.append(Row().put("   ").put("keys", "bold", _NAME).put(f"changed: {remapped}", "dim").line(width))
    chosen = list(SETTINGS.values())[at]
    if message:
        lines += [EMPTY, *_wrapped(message, "key", width)]
    lines.append(EMPTY)
    texts = [chosen.help, f"Values: {chosen.allowed}. Default: {format_value(chosen.default)}."]
    texts.append("A change shows at once." if chosen.is_live else "A change shows at the next start.")
    for text in texts:
        lines += [Row().put(f"   {part}").line(width) for part in textwrap.wrap(text, max(20, width - 4))]
    lines += [EMPTY, *_wrapped(f"file: {settings.path}", "dim", width)]
    lines += _wrapped("command line over ESPER_TUI_NAME over file over default", "dim", width)
    return sign_cuts(lines, glyphs.cut)


def _wrapped(text: str, style: str, width: int) -> list[Line]:
    room = max(20, width - 4)
    return [
        Row().put(f"   {part}", style).line(width)
        for part in textwrap.wrap(text, room, break_on_hyphens=False)
    ]
