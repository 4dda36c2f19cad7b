"""Keys for runs: the list of them, and opening another one in this terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.feed import Feed, NoFeed
from esper_overwatch.overwatch_tui.source.recording import FetchFeed
from esper_overwatch.overwatch_tui.source.run_list import ListedRun, MachineRuns
from esper_overwatch.overwatch_tui.start import RunChoice
from esper_overwatch.protocol.errors import EsperError

from .base import PaintedApp

if TYPE_CHECKING:
    from esper_overwatch.overwatch_tui.screens.runs import RunsScreen

FETCH_SECONDS = 0.2


class RunActions(PaintedApp):
    """The list of runs, from which one is opened in place of the one that is watched."""

    choice: RunChoice
    _list: RunsScreen | None = None
    """The list that was shown last; it may be closed."""

    def on_mount(self) -> None:
        self.set_interval(FETCH_SECONDS, self._open_fetched)
        if self.choice.is_start:
            self.action_runs()

    def paint(self) -> None:
        """Paint, but nothing behind the list, which covers the screen."""
        if self.screen_stack[-1] is not self._list:
            super().paint()

    def action_runs(self) -> None:
        """Show the list above the run that is watched."""
        from esper_overwatch.overwatch_tui.screens.runs import RunsScreen

        view, watched = self.choice.view, self.session.view
        view.glyphs, view.read_only, view.message = watched.glyphs, self.choice.read_only, ""
        is_open = not isinstance(self.session.feed, NoFeed)
        self._select_watched()
        self._list = RunsScreen(self.choice.runs, self.palette, view, self._open, is_something_open=is_open)
        self.push_screen(self._list, lambda _: self.call_next(self.paint))

    def _select_watched(self) -> None:
        """Select the run that is watched in the list."""
        for machine, run in self.choice.runs.entries:
            if run.id == self.session.feed.run_id:
                self.choice.view.selected["runs"] = machine.host, run.id

    def _open(self, machine: MachineRuns, run: ListedRun) -> None:
        if run.id == self.session.feed.run_id and run.live and self.session.link.state == "live":
            self._close_list()
            return
        try:
            feed = machine.open(run)
        except EsperError as error:
            self.choice.view.show_message(f"{run.name} cannot be opened: {error}")
            return
        self.choice.opened = f"--ssh {machine.host}:{run.name}" if machine.host else run.name
        self.follow(feed, is_recording=not run.live)
        self._close_list()

    def _open_fetched(self) -> None:
        """Play the recording of another machine once it is here."""
        if isinstance(self.session.feed, FetchFeed):
            recording = self.session.feed.take_recording()
            if recording is not None:
                self.follow(recording, is_recording=True)

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
        self._rung = None
        old.close()
