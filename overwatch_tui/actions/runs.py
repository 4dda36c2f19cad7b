"""Keys for runs: the list of them, opening another one in this terminal, and comparing some."""

from __future__ import annotations

from collections.abc import Sequence

from textual.timer import Timer

from esper_overwatch.overwatch_tui.model.curves import metric_curve
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.runs import RunsScreen
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.compared_runs import ComparedRuns, open_compared
from esper_overwatch.overwatch_tui.source.feed import Feed, NoFeed
from esper_overwatch.overwatch_tui.source.recording import FetchFeed
from esper_overwatch.overwatch_tui.source.run_list import ListedRun, MachineRuns
from esper_overwatch.overwatch_tui.start import RunChoice
from esper_overwatch.protocol.errors import EsperError

from .base import PaintedApp

FETCH_SECONDS = 0.2
COMPARE_SECONDS = 0.1
"""Period of reading what runs are compared by, which takes a quarter of it at most."""


class RunActions(PaintedApp):
    """The list of runs, from which one is opened in place of the one that is watched."""

    choice: RunChoice
    _list: RunsScreen | None = None
    """The list that was shown last; it may be closed."""

    _compares: Timer | None = None
    _charts: tuple[str, ...] = ()
    """Curves that a comparison begins with; none = it begins with the view."""

    def on_mount(self) -> None:
        self.set_interval(FETCH_SECONDS, self._open_fetched)
        if self.choice.compared.others:
            self._lay_over()
            names = ", ".join(other.run.name for other in self.choice.compared.others)
            self.show_message(f"charts are laid over those of {names}: Enter on a row opens its charts")
        if self.choice.is_start:
            self.action_runs()

    def paint(self) -> None:
        """Paint, but nothing behind the list, which covers the screen."""
        if self.screen_stack[-1] is not self._list:
            super().paint()

    def action_runs(self) -> None:
        """Show the list above the run that is watched."""
        view, watched = self.choice.view, self.session.view
        view.glyphs, view.read_only, view.message = watched.glyphs, self.choice.read_only, ""
        is_open = not isinstance(self.session.feed, NoFeed)
        for machine, run in self.choice.runs.entries:
            if run.id == self.session.feed.run_id:
                view.selected["runs"] = machine.host, run.id
        self._list = RunsScreen(
            self.choice.runs, self.palette, view, self._open, self._compare, is_something_open=is_open
        )
        self.push_screen(self._list, lambda _: self.call_next(self.paint))

    def _open(self, machine: MachineRuns, run: ListedRun) -> None:
        if run.id == self.session.feed.run_id and run.live and self.session.link.state == "live":
            self._close_list()
            return
        try:
            feed = machine.open(run)
        except EsperError as error:
            self.choice.view.show_message(f"{run.name} cannot be opened: {error}")
            return
        self.choice.compared.close()
        self.choice.compared = ComparedRuns()
        self._show(machine, run, feed)

    def _compare(self, runs: Sequence[tuple[MachineRuns, ListedRun]]) -> None:
        """Open the first run with the charts by which all are compared; one alone with the watched one."""
        if len(runs) == 1 and runs[0][1].id != (watched := self.session.feed.run_id):
            runs = [*(entry for entry in self.choice.runs.entries if entry[1].id == watched), *runs]
        if len(runs) < 2:
            self.choice.view.show_message("Space marks a run; mark those that are to be compared")
            return
        machine, run = runs[0]
        try:
            compared = open_compared(runs)
            feed = machine.open(run)
        except EsperError as error:
            self.choice.view.show_message(f"they cannot be compared: {error}")
            return
        self.choice.compared.close()
        self.choice.compared, self._charts = compared, _telling_curves(run)
        self._show(machine, run, feed)

    def _show(self, machine: MachineRuns, run: ListedRun, feed: Feed) -> None:
        self.choice.opened = f"--ssh {machine.host}:{run.name}" if machine.host else run.name
        self.follow(feed, is_recording=not run.live)
        self._close_list()

    def _open_fetched(self) -> None:
        """Play the recording of another machine once it is here."""
        if isinstance(self.session.feed, FetchFeed):
            recording = self.session.feed.take_recording()
            if recording is not None:
                self.follow(recording, is_recording=True)

    def _lay_over(self) -> None:
        """Lay the curves of the compared runs over those of this one, and go on reading them."""
        compared, charts = self.choice.compared, self.session.view.charts
        charts.compare(compared.watched, [other.run for other in compared.others])
        charts.names = self._charts
        if self._compares is None:
            self._compares = self.set_interval(COMPARE_SECONDS, self._read_compared)

    def _read_compared(self) -> None:
        session, compared = self.session, self.choice.compared
        if compared.others and compared.step(COMPARE_SECONDS / 4):
            session.needs_paint = True
        if compared.notice:
            session.state.note(compared.notice, now=session.feed.now(), severity="warning")
            self.say(compared.notice)
            compared.notice = ""

    def _close_list(self) -> None:
        if self.screen is self._list:
            self.session.view.glyphs = self.choice.view.glyphs
            self.pop_screen()
        self.call_next(self.action_redraw)

    def follow(self, feed: Feed, *, is_recording: bool) -> None:
        """Show another run from now on; the feed of the former one is closed."""
        old = self.session
        view = ViewState(
            glyphs=old.view.glyphs,
            has_colour=old.view.has_colour,
            keys=old.view.keys,
            sort=old.view.sort,
            rate=old.view.rate,
            read_only=self.choice.read_only or is_recording,
        )
        view.charts.pins = old.view.charts.pins
        self.session = Session(feed, view)
        if self.choice.compared.others:
            self._lay_over()
        self._rung = None
        old.close()


def _telling_curves(run: ListedRun) -> tuple[str, ...]:
    """The curves that say how a run learns."""
    if run.kind == "training":
        return "return.mean", "accuracy.mean"
    signal = run.overview.signal if run.overview else ""
    return (metric_curve(signal),) if signal else ()
