"""Keys for charts: open, axis, smoothing, overlay, cursor, pins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from esper_overwatch.overwatch_tui.render.chart_axis import CLOCK, ELAPSED, ROUNDS, axis_kinds
from esper_overwatch.overwatch_tui.render.chart_page import chart_width
from esper_overwatch.overwatch_tui.render.chart_view import MAX_PINS, OVER_RUNS, OVERLAYS, SMOOTHINGS
from esper_overwatch.overwatch_tui.render.layout import BOTTOM, TOP
from esper_overwatch.overwatch_tui.render.plot import plot_grid
from esper_overwatch.overwatch_tui.source.state_files import PinFile

from .moves import MoveActions

_T = TypeVar("_T")


class ChartActions(MoveActions):
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
        """Move; an open page then shows the charts of the selected row."""
        super().action_move(by)
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
        charts = self.session.view.charts
        charts.axis = _after(inputs.axis_kind, axis_kinds(inputs.own_curves))
        charts.let_go()
        words = {CLOCK: "the clock", ELAPSED: "the time since the run began", ROUNDS: "rounds"}
        axis = self.body.axis
        self.say(f"charts are by {words.get(axis.kind, f'{axis.unit}s')}")

    def action_smooth(self) -> None:
        charts = self.session.view.charts
        charts.smoothing = _after(charts.smoothing, SMOOTHINGS)
        weight = f"smoothed, weight {charts.smoothing:g}" if charts.smoothing else "not smoothed"
        self.say(f"charts are {weight}")

    def action_overlay(self) -> None:
        charts = self.session.view.charts
        charts.overlay = _after(charts.overlay, (*OVERLAYS, OVER_RUNS) if charts.runs else OVERLAYS)
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


def _after(value: _T, values: Sequence[_T]) -> _T:
    """The value behind this one, after the last the first."""
    return values[(values.index(value) + 1) % len(values)]
