"""Keys that change how things are shown, now or by a setting."""

from __future__ import annotations

import os

from esper_overwatch.overwatch_tui.render.chart_axis import MAX_ZOOM
from esper_overwatch.overwatch_tui.render.notifier import chosen_quiet_hours
from esper_overwatch.overwatch_tui.render.palettes import automatic_theme
from esper_overwatch.overwatch_tui.render.theme import chosen_glyphs
from esper_overwatch.overwatch_tui.settings.sources import Settings
from esper_overwatch.overwatch_tui.settings.table import SettingValue
from esper_overwatch.overwatch_tui.start import RunChoice

from .moves import MoveActions


class DisplayActions(MoveActions):
    """Order, layout, window, rate, glyphs, theme, and the screen of the settings."""

    settings: Settings
    choice: RunChoice

    def action_sort(self) -> None:
        """Turn the order of the panel's rows round, then sort by the next column."""
        view, orders = self.session.view, self._orders
        if orders:
            name = orders[view.cycle_order(self._panel(), len(orders))]
            turned = view.order(self._panel())[1]
        else:
            view.cycle_sort()
            name, turned = f"envs by {view.sort}", view.is_reversed
        self.say(f"{name}{', turned round' if turned else ''}")

    def action_reverse(self) -> None:
        view, panel = self.session.view, self._panel()
        if self._orders:
            column, turned = view.order(panel)
            view.orders[panel] = column, not turned
        else:
            view.is_reversed = not view.is_reversed
        self.paint()

    @property
    def _orders(self) -> tuple[str, ...]:
        return self.panels[self._panel()].renderer.orders

    def action_env_layout(self) -> None:
        self.session.view.cycle_env_layout(self.session.state.num_envs)
        self.paint()

    def action_log_filter(self) -> None:
        self.session.view.cycle_log_filter()
        self.session.view.selected.pop("log", None)
        self.say(f"log: {self.session.view.log_filter}")

    def action_zoom(self, by: int) -> None:
        inputs = self.body
        charts = self.session.view.charts
        if inputs.axis.is_by_step:
            charts.step_zoom = min(MAX_ZOOM, max(0, charts.step_zoom - by))
        else:
            self.session.view.zoom(by, inputs.age)
        self.say(f"charts show {self.body.axis.name}")

    def action_rate(self) -> None:
        self.session.view.cycle_rate()
        self.say(f"{self.session.view.rate:g} frames per second")

    def action_glyphs(self) -> None:
        self.session.view.toggle_glyphs()
        self.paint()

    def action_theme(self) -> None:
        if not self.palette.colour:
            self.show_message("no theme: NO_COLOR or --no-color is given")
        else:
            self.show_theme(self.palette.next_name())
            self.show_message(f"theme {self.palette.name}")
        self.paint()

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

    def _apply(self, name: str, value: SettingValue) -> None:
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
