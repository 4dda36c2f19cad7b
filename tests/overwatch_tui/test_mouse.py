"""Clicks and the wheel, on the terminal's own lines."""

from __future__ import annotations

from typing import Any

import pytest
from textual.events import MouseScrollDown, MouseScrollUp
from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.screens.main import MainScreen
from esper_overwatch.overwatch_tui.screens.palette import PaletteScreen

from .harness import events, in_loop, session

SIZE = (120, 40)


def app_of() -> OverwatchApp:
    return OverwatchApp(session(events()))


def place_of(app: OverwatchApp, box: str, text: str) -> tuple[int, int]:
    """Column and line of the screen where a box shows a text."""
    main = app.screen_stack[0]
    assert isinstance(main, MainScreen)
    panel = main.query_one(f"#box-{box}")
    for y, line in enumerate(panel.lines):  # type: ignore[attr-defined]
        if text in plain(line):
            return panel.placed.x + plain(line).index(text), panel.placed.y + y  # type: ignore[attr-defined]
    raise AssertionError(f"{box} does not show {text!r}")


async def click(pilot: Pilot[None], app: OverwatchApp, box: str, text: str) -> None:
    await pilot.click(offset=place_of(app, box, text))
    await pilot.pause()


async def turn(app: OverwatchApp, pilot: Pilot[None], kind: Any, at: tuple[int, int]) -> None:
    await pilot._post_mouse_events([kind], offset=at)
    await pilot.pause()


@in_loop
async def test_a_click_on_a_tab_shows_its_view() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        for tab, view in (("4 Seeds", "seeds"), ("5 Machine", "machine"), ("1 ", "run")):
            await click(pilot, app, "views", tab)
            assert app.session.view.name == view


@in_loop
async def test_a_click_selects_a_row_and_another_opens_it() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        app.session.view.select("envs", 0)
        app.paint()
        await pilot.pause()
        await click(pilot, app, "envs", " 01 ")
        assert app.session.view.env == 1
        assert not app.session.view.detail
        await click(pilot, app, "envs", "01 ")
        assert app.session.view.detail


@in_loop
async def test_a_click_on_a_heading_sorts_and_reverses() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await click(pilot, app, "envs", "RETURN")
        assert (app.session.view.sort, app.session.view.is_reversed) == ("return", False)
        await click(pilot, app, "envs", "RETURN")
        assert (app.session.view.sort, app.session.view.is_reversed) == ("return", True)
        await click(pilot, app, "envs", " ACC")
        await click(pilot, app, "envs", "GRAD")
        assert (app.session.view.sort, app.session.view.is_reversed) == ("gradient", False)


@in_loop
async def test_a_click_on_a_hint_presses_its_key() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await click(pilot, app, "keys", "freeze")
        assert app.session.cursor.is_held
        await click(pilot, app, "keys", " ? ")
        assert isinstance(app.screen, PaletteScreen)


@pytest.mark.parametrize(("kind", "expected"), [(MouseScrollDown, 3), (MouseScrollUp, 0)])
@in_loop
async def test_the_wheel_moves_the_selection(kind: Any, expected: int) -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        app.session.view.sort = "env"
        app.session.view.select("envs", 0)
        app.paint()
        await pilot.pause()
        await turn(app, pilot, kind, place_of(app, "envs", " 01 "))
        assert app.session.view.env == expected


@in_loop
async def test_a_click_on_nothing_changes_nothing() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        app.session.view.select("envs", 0)
        app.paint()
        await pilot.pause()
        await click(pilot, app, "envs", "ALL")
        await click(pilot, app, "status", "")
        assert app.session.view.env == 0
        assert len(app.screen_stack) == 1
