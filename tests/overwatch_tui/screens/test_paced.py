"""Slices: what there is room for is sent by importance, the rest later and as it is then."""

from __future__ import annotations

from typing import Any

import pyte
import pytest
from textual._compositor import CompositorUpdate
from textual.app import App

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.screens.main import MainScreen
from esper_overwatch.overwatch_tui.screens.output_pace import OutputPace
from tests.overwatch_tui.harness import events, in_loop, session

SIZE = (120, 40)


class FixedPace(OutputPace):
    """A pace whose room the test sets, for all frames together."""

    left: int | None = None

    @property
    def room(self) -> int | None:
        return self.left


class Terminal:
    """Shows what an app sends that has no terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: FixedPace) -> None:
        self._screen = pyte.Screen(*SIZE)
        self._stream = pyte.Stream(self._screen)
        self._pace = pace
        self.bytes = 0
        monkeypatch.setattr(App, "_display", lambda *called: self._show(*called))

    def _show(self, app: App[None], _: object, renderable: object) -> None:
        if not isinstance(renderable, CompositorUpdate):
            return
        data = renderable.render_segments(app.console)
        self._stream.feed(data)
        self.bytes += len(data.encode())
        if self._pace.left is not None:
            self._pace.left = max(0, self._pace.left - len(data.encode()))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]


def wanted_lines(app: OverwatchApp) -> list[str]:
    """What a terminal without a limit shows."""
    return [
        "".join(segment.text for segment in line).rstrip() for line in app.screen._compositor.render_strips()
    ]


@pytest.fixture
def pace() -> FixedPace:
    return FixedPace()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, pace: FixedPace) -> Terminal:
    return Terminal(monkeypatch, pace)


def test_view_switch_is_sent_in_slices_by_importance(pace: FixedPace, terminal: Terminal) -> None:
    @in_loop
    async def run() -> None:
        app: Any = OverwatchApp(session(events()))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            main = app.screen
            assert isinstance(main, MainScreen)
            app.pace = pace
            before = terminal.lines
            pace.left = 700
            await pilot.press("3")
            await pilot.pause()
            wanted = wanted_lines(app)
            assert terminal.lines[2:4] == wanted[2:4], "the row of views and the first line of the view"
            assert terminal.lines[30] == before[30] != wanted[30]
            assert main.num_owed > 5
            pace.left, sent = 0, terminal.bytes
            app.paint()
            app.tick()
            await pilot.pause()
            assert terminal.bytes == sent, "nothing is sent where there is no room"
            pace.left = 10**6
            main.send_owed()
            assert main.num_owed == 0
            assert terminal.lines == wanted_lines(app)

    run()


def test_newest_lines_of_a_log_are_sent_first(pace: FixedPace, terminal: Terminal) -> None:
    @in_loop
    async def run() -> None:
        app: Any = OverwatchApp(session(events()[:400]))
        async with app.run_test(size=SIZE) as pilot:
            app.session.view.show_view("machine", "log")
            app.paint()
            await pilot.pause()
            app.pace = pace
            before = terminal.lines
            pace.left = 700
            app.session.feed.items = list(events()[400:])  # more than the screen holds
            app.tick()
            app.paint()
            await pilot.pause()
            wanted = wanted_lines(app)
            rows = app.screen_stack[0]._upwards
            newest = max(y for y in rows if wanted[y])
            assert terminal.lines[newest] == wanted[newest] != before[newest]
            oldest = rows[1]
            assert terminal.lines[oldest] == before[oldest] != wanted[oldest]

    run()


def test_owed_lines_are_drawn_when_they_are_sent(pace: FixedPace, terminal: Terminal) -> None:
    @in_loop
    async def run() -> None:
        app: Any = OverwatchApp(session(events()))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            main = app.screen
            assert isinstance(main, MainScreen)
            app.pace = pace
            pace.left = 0
            await pilot.press("3", "4", "6")
            await pilot.pause()
            assert 0 < main.num_owed <= 40 * 3, "no frame waits, only lines"
            pace.left = None
            main.send_owed()
            assert main.num_owed == 0
            assert not main._compositor._dirty_regions
            assert terminal.lines == wanted_lines(app)

    run()
