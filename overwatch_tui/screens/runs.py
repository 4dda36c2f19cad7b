"""The list of runs: the start screen where there are several, and what `R` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Click
from textual.screen import Screen

from esper_overwatch.overwatch_tui.render.layout import MIN_HEIGHT, MIN_WIDTH
from esper_overwatch.overwatch_tui.render.lines import Row
from esper_overwatch.overwatch_tui.render.run_rows import (
    FIELDS,
    RunListInputs,
    keys,
    marked_runs,
    run_list_lines,
    selected_run,
)
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.source.compared_runs import LETTERS
from esper_overwatch.overwatch_tui.source.run_list import ListedRun, MachineRuns, RunList

from .input_line import type_filter
from .line_widget import LinePanel

POLL_SECONDS = 0.1
AGES_SECONDS = 10.0
"""Period of drawing the ages again where nothing else changes."""


class RunsScreen(Screen[None], inherit_bindings=False):
    """Shows the runs; Enter hands over the selected one.

    Args:
        runs: asked while the screen is shown.
        view: its glyphs, message and read-only mark; keeps the selection from one showing to the next.
        on_open: called with the run that is to be opened.
        on_compare: called with the runs that are to be compared, in the order of their letters.
        is_something_open: whether Esc has a run to go back to.
    """

    AUTO_FOCUS = ""
    BINDINGS = [  # noqa: RUF012
        Binding("j,down", "move(1)", id="down"),
        Binding("k,up", "move(-1)", id="up"),
        Binding("g,home", "move(-1000000)", id="first_row"),
        Binding("G", "move(1000000)", id="last_row"),
        Binding("end", "move(1000000)"),
        Binding("pagedown", "page(1)", id="page_down"),
        Binding("pageup", "page(-1)", id="page_up"),
        Binding("enter", "open", id="enter"),
        Binding("escape", "back", id="step_back"),
        Binding("R", "back", id="runs"),
        Binding("space", "mark"),
        Binding("c", "compare"),
        Binding("slash", "filter", id="filter"),
        Binding("question_mark,f1", "app.help", id="help"),
        Binding("q", "app.leave", id="leave"),
        Binding("ctrl+c", "app.leave"),
        Binding("ctrl+z", "app.suspend_process"),
        Binding("ctrl+l", "app.redraw"),
    ]

    def __init__(
        self,
        runs: RunList,
        theme: Theme,
        view: ViewState,
        on_open: Callable[[MachineRuns, ListedRun], None],
        on_compare: Callable[[Sequence[tuple[MachineRuns, ListedRun]]], None],
        *,
        is_something_open: bool,
    ) -> None:
        super().__init__()
        self._panel = LinePanel(theme, id="runs")
        self._theme = theme
        self._runs = runs
        self._view = view
        self._on_open = on_open
        self._on_compare = on_compare
        self._is_something_open = is_something_open
        self._draw_at = 0.0

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_mount(self) -> None:
        self.set_interval(POLL_SECONDS, self._poll)

    def on_unmount(self) -> None:
        self._runs.close()

    def on_resize(self) -> None:
        self.draw()

    def _poll(self) -> None:
        had_message = bool(self._view.message)
        self._view.expire_message()
        has_changed = self._runs.poll() or had_message != bool(self._view.message)
        if has_changed or time.monotonic() >= self._draw_at:
            self.draw()

    def draw(self) -> None:
        """Show this moment."""
        self._draw_at = time.monotonic() + AGES_SECONDS
        width, height = self.size
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            text = f"esper-tui needs {MIN_WIDTH}x{MIN_HEIGHT} (now {width}x{height})"
            self._panel.show_lines([Row().put(text, "warning").line(width)])
            return
        self._panel.show_lines(run_list_lines(self._inputs(), width, height))
        rows = keys(self._inputs())
        if rows:
            # What is selected stays so: a run that comes in above must not be what Enter opens.
            self._view.select("runs", rows[self._view.selected_index("runs", rows)])

    def _inputs(self) -> RunListInputs:
        return RunListInputs(self._runs, self._view, time.time_ns() // 1000, self._is_something_open)

    def action_move(self, by: int) -> None:
        self._view.move_selection("runs", keys(self._inputs()), by)
        self.draw()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 10))

    def action_open(self) -> None:
        entry = selected_run(self._inputs())
        if entry is not None:
            self._on_open(*entry)
            self.draw()

    def action_mark(self) -> None:
        """Give the selected run the next letter, or take its own away."""
        rows, marked = keys(self._inputs()), self._view.marked
        if not rows:
            return
        key = rows[self._view.selected_index("runs", rows)]
        if key in marked:
            marked.remove(key)
        elif len(marked) < len(LETTERS):
            marked.append(key)
        else:
            self._view.show_message(f"{len(LETTERS)} runs are marked, more are not compared")
        self.draw()

    def action_compare(self) -> None:
        """Compare the marked runs; of less than two the watched or marked one with the selected."""
        entries, selected = marked_runs(self._inputs()), selected_run(self._inputs())
        if len(entries) < 2 and selected is not None and selected not in entries:
            entries = [*entries, selected]
        self._on_compare(entries)
        self.draw()

    def action_filter(self) -> None:
        such_as = "such as st:train acc>60 -name:test"
        type_filter(self.app, self._view, "runs", FIELDS, such_as, self._theme, self.draw)

    def on_click(self, event: Click) -> None:
        """The first click on a row selects it, one on the selected row opens it."""
        event.stop()
        rows = keys(self._inputs())
        at = self._view.row_at("runs", len(rows), event.screen_y)
        if at is not None and at == self._view.selected_index("runs", rows):
            self.action_open()
        elif at is not None:
            self._view.select("runs", rows[at])
            self.draw()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def action_back(self) -> None:
        """Step out of the filter, then of the list."""
        if self._view.filters.pop("runs", None) is not None:
            self.draw()
        elif self._is_something_open:
            self.dismiss()
        else:
            self._view.show_message("no run is open yet: Enter opens one, q quits")
            self.draw()
