"""Slices: what there is room for is sent by importance, the rest later and as it is then."""

from __future__ import annotations

from textual.geometry import Region

from overwatch_tui.app import OverwatchApp
from overwatch_tui.screens.main import MainScreen
from overwatch_tui.screens.output_pace import OutputPace
from tests.overwatch_tui.harness import events, in_loop, session

SIZE = (120, 40)


class FixedPace(OutputPace):
    """A pace whose room the test sets, for all frames together."""

    left: int | None = None

    def note_cells(self, cells: int, count: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - int(cells * self.cell_bytes))

    @property
    def room(self) -> int | None:
        return self.left


def sent_lines(app: OverwatchApp, frames: list[list[int]]) -> None:
    """Keep the lines of every frame that is displayed."""
    display = app._display

    def keep(screen: object, renderable: object) -> None:
        spans = getattr(renderable, "spans", None)
        frames.append([y for y, _, _ in spans] if spans is not None else [-1])
        display(screen, renderable)  # type: ignore[arg-type]

    app._display = keep  # type: ignore[method-assign, assignment]


@in_loop
async def test_view_switch_is_sent_in_slices_by_importance() -> None:
    app = OverwatchApp(session(events()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        main = app.screen
        assert isinstance(main, MainScreen)
        app.pace = pace = FixedPace()
        frames: list[list[int]] = []
        sent_lines(app, frames)
        pace.left = 700
        await pilot.press("3")
        await pilot.pause()
        sent = [y for frame in frames for y in frame]
        assert 2 in sent, "the row of views"
        assert 3 in sent, "the first line of the view"
        assert 30 not in sent
        assert main.num_owed > 5
        pace.left = 0
        frames.clear()
        app.paint()
        app.tick()
        await pilot.pause()
        assert frames in ([], [[-1]]), "nothing is sent where there is no room"
        pace.left = 10**6
        main.send_owed()
        assert main.num_owed == 0
        pace.left = None
        assert set(range(3, 40)) <= set(sent) | {y for frame in frames for y in frame}


@in_loop
async def test_owed_lines_are_drawn_when_they_are_sent() -> None:
    app = OverwatchApp(session(events()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        main = app.screen
        assert isinstance(main, MainScreen)
        app.pace = pace = FixedPace()
        pace.left = 0
        await pilot.press("3", "4", "6")
        await pilot.pause()
        owed = main.num_owed
        assert owed <= 40 * 3, "no frame waits, only lines"
        pace.left = None
        main.send_owed()
        assert main.num_owed == 0
        assert not any(isinstance(region, Region) for region in main._compositor._dirty_regions)
