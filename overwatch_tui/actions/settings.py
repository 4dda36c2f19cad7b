"""The key of the settings: shows them, and does at once what a change asks for."""

from __future__ import annotations

import os

from esper_overwatch.overwatch_tui.render.notifier import chosen_quiet_hours
from esper_overwatch.overwatch_tui.render.palettes import automatic_theme
from esper_overwatch.overwatch_tui.render.theme import chosen_glyphs
from esper_overwatch.overwatch_tui.settings.sources import Settings
from esper_overwatch.overwatch_tui.settings.table import Value
from esper_overwatch.overwatch_tui.start import RunChoice

from .base import PaintedApp


class SettingActions(PaintedApp):
    """The screen of the settings."""

    settings: Settings
    choice: RunChoice

    def action_settings(self) -> None:
        from esper_overwatch.overwatch_tui.screens.settings import SettingsScreen

        screen = SettingsScreen(
            self.settings,
            self.palette,
            lambda: self.session.view.glyphs,
            self._apply,
            not_kept="read-only" if self.choice.read_only else "in a browser" if self.is_web else "",
        )
        self.push_screen(screen, lambda _: self.call_next(self.paint))

    def _apply(self, name: str, value: Value) -> None:
        view = self.session.view
        if name == "theme":
            self.show_theme(automatic_theme(os.environ) if value == "auto" else str(value))
        elif name == "refresh":
            view.rate = float(value)
        elif name == "glyphs":
            view.glyphs = chosen_glyphs(str(value), os.environ)
        elif name == "quiet":
            self.notifier.quiet = chosen_quiet_hours(str(value))
        elif name == "sort":
            view.sort = str(value)
