"""Keys for charts: open, axis, smoothing, overlay, cursor, pins."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.render.chart_axis import CLOCK, ELAPSED, ROUNDS, axis_kinds
from esper_overwatch.overwatch_tui.render.chart_page import chart_width
from esper_overwatch.overwatch_tui.render.chart_view import MAX_PINS
from esper_overwatch.overwatch_tui.render.layout import BOTTOM, TOP
from esper_overwatch.overwatch_tui.render.plot import plot_grid
from esper_overwatch.overwatch_tui.source.state_files import PinFile

from .moments import MomentActions


class ChartActions(MomentActions):
    """The page of charts, and what holds for all charts of the screen."""

    def on_mount(self) -> None:
        self.pin_file = PinFile()
        self.session.view.charts.pins = self.pin_file.names(MAX_PINS)

    def _charts_of_row(self) -> tuple[str, ...]:
        """Curves of the selected row of the panel that moves act on."""
        return tuple(self.panels[self._panel()].charts(self.body))

    def action_to_end(self) -> None:
        self.session.view.charts.let_go()
        super().action_to_end()

    def action_move(self, by: int) -> None:
        super().action_move(by)
        self._follow_row()

    def _follow_row(self) -> None:
        """Show the charts of the selected row on an open page."""
        view = self.session.view
        if view.charts.names and self._charts_of_row():
            view.charts.names = self._charts_of_row()
            self.paint()

    def action_log_axis(self) -> None:
        charts = self.session.view.charts
        charts.is_log = not charts.is_log
        self.say(f"charts have a {'logarithmic' if charts.is_log else 'linear'} axis")

    def action_axis(self) -> None:
        inputs = self.body
        self.session.view.charts.cycle_axis(axis_kinds(inputs.own_curves), inputs.axis_kind)
        words = {CLOCK: "the clock", ELAPSED: "the time since the run began", ROUNDS: "rounds"}
        axis = self.body.axis
        self.say(f"charts are by {words.get(axis.kind, f'{axis.unit}s')}")

    def action_smooth(self) -> None:
        charts = self.session.view.charts
        charts.cycle_smoothing()
        weight = f"smoothed, weight {charts.smoothing:g}" if charts.smoothing else "not smoothed"
        self.say(f"charts are {weight}")

    def action_overlay(self) -> None:
        charts = self.session.view.charts
        charts.cycle_overlay()
        words = {
            "off": "charts show one curve",
            "all": "charts show the same number of all envs or heads",
            "runs": "charts show the runs that are compared, each from its beginning",
        }
        self.say(words[charts.overlay])

    def action_inspect(self, cells: int) -> None:
        """Move the cursor of all charts; further than the edge, the charts."""
        inputs, charts = self.body, self.session.view.charts
        width, height = self.size
        shown = len(charts.names or charts.pins) or 1
        each = chart_width(shown, width, height - TOP - BOTTOM - 1)
        cell = plot_grid(each, inputs.axis, inputs.glyphs).cell_micros
        charts.move_cursor(cells, cell, *inputs.axis_ends)
        self.paint()

    def action_pin(self) -> None:
        charts = self.session.view.charts
        names = charts.names or self._charts_of_row()[:1]
        if not names:
            self.show_message("nothing to pin: this row has no chart")
        else:
            self.show_message(charts.toggle_pins(names))
            if not self.is_web:
                self.pin_file.write(charts.pins)
        self.paint()
