"""Keys that change how things are shown, now or by a setting."""

from __future__ import annotations

import os

from esper_overwatch.overwatch_tui.render.chart_axis import MAX_ZOOM
from esper_overwatch.overwatch_tui.render.notifier import chosen_quiet_hours
from esper_overwatch.overwatch_tui.render.palettes import chosen_theme
from esper_overwatch.overwatch_tui.render.theme import chosen_glyphs
from esper_overwatch.overwatch_tui.settings.sources import Chosen, Settings, write_setting
from esper_overwatch.overwatch_tui.settings.table import (
    DEFAULT,
    SETTINGS,
    BadSetting,
    SettingValue,
    format_value,
)
from esper_overwatch.overwatch_tui.start import RunChoice

from .export import ExportActions


class DisplayActions(ExportActions):
    """Order, window, and the settings."""

    settings: Settings
    choice: RunChoice

    def action_sort(self) -> None:
        """Turn the order of the panel's rows round, then sort by the next column; save charts."""
        if self.session.view.charts.names or self._panel() in ("pins", "charts"):
            self.action_export("svg", "csv")
            return
        view, orders = self.session.view, self.panels[self._panel()].orders
        if orders:
            name = orders[view.cycle_order(self._panel(), len(orders))]
            turned = view.order(self._panel())[1]
        else:
            view.cycle_sort()
            name, turned = f"envs by {view.sort}", view.is_reversed
        self.say(f"{name}{', turned round' if turned else ''}")

    def action_zoom(self, by: int) -> None:
        inputs = self.body
        charts = self.session.view.charts
        if inputs.axis.is_by_step:
            charts.step_zoom = min(MAX_ZOOM, max(0, charts.step_zoom - by))
        else:
            self.session.view.zoom(by, inputs.age)
        self.say(f"charts show {self.body.axis.name}")

    def change_setting(self, name: str, text: str) -> None:
        """Take a value that `Setting.parse` accepts, or the default; keep it where that is wanted."""
        setting, before = SETTINGS[name], self.settings.chosen[name]
        value = None if text == DEFAULT else setting.parse(text, name)
        not_kept = "read-only" if self.choice.read_only else "in a browser" if self.is_web else ""
        if not_kept and not setting.is_live:
            self.show_message(f"{not_kept}: {name} is not changed")
            return
        try:
            said = self._keep(name, value, not_kept, before)
        except BadSetting as error:
            self.show_message(str(error))
            return
        if setting.is_live:
            self._apply(name, self.settings[name])
        self.show_message(said)

    def _keep(self, name: str, value: SettingValue | None, not_kept: str, before: Chosen) -> str:
        """Write the file and take over the value; says what happened."""
        settings, setting = self.settings, SETTINGS[name]
        shown = setting.default if value is None else value
        if not_kept:
            settings.chosen[name] = Chosen(shown, "this terminal")
            return f"{not_kept}: {name} = {format_value(shown)} in this terminal only"
        write_setting(settings.path, name, value)
        settings.chosen[name] = Chosen(shown, "default" if value is None else "file")
        done = f"took {name} out of the file" if value is None else f"wrote {name} = {format_value(value)}"
        if before.source not in ("default", "file", "this terminal"):
            done += f"; the next start still has {before.source}, which is above the file"
        elif not setting.is_live:
            done += "; from the next start on"
        return done

    def _apply(self, name: str, value: SettingValue) -> None:
        view = self.session.view
        if name == "theme":
            self.show_theme(chosen_theme(str(value), os.environ))
        elif name == "refresh":
            view.rate = float(value)
        elif name == "glyphs":
            view.glyphs = chosen_glyphs(str(value), os.environ)
        elif name == "quiet":
            self.notifier.quiet = chosen_quiet_hours(str(value))
        elif name == "sort":
            view.sort = str(value)
