"""Themes in the running terminal: chosen on the command line, changed by a key."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.cli import main
from esper_overwatch.overwatch_tui.render.palettes import PALETTES
from esper_overwatch.overwatch_tui.screens.palette import PaletteScreen
from esper_overwatch.overwatch_tui.settings.sources import Settings

from .harness import events, in_loop, session
from .test_app import LARGE, SMALL, app_of, do, panels, press, shown, within
from .test_tty import playing


def _colours(app: OverwatchApp) -> set[int | None]:
    """Numbers of the colours of text on the main screen, without the line that has messages."""
    return {
        segment.style.color.number
        for panel in panels(app)
        if panel.id != "box-status"
        for y in range(panel.size.height)
        for segment in panel.render_line(y)
        if segment.style is not None and segment.style.color is not None
    }


@in_loop
async def test_each_theme_shows_at_once(tmp_path: Path) -> None:
    app = app_of(settings=Settings(tmp_path / "tui.toml"))
    async with app.run_test(size=SMALL) as pilot:
        await pilot.pause()
        seen = [_colours(app)]
        for name in [*list(PALETTES)[1:], "dark"]:
            await do(pilot, f"theme {name}")
            assert f"theme = {name}" in shown(app, "box-status")
            seen.append(_colours(app))
    assert all(one != other for one, other in pairwise(seen))
    assert seen[0] == seen[-1]
    assert all(number is not None and number < 16 for number in seen[-2]), "of the theme with 16 colours"


@in_loop
async def test_theme_reaches_what_is_opened_later() -> None:
    app = app_of(theme="light")
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "question_mark")
        assert isinstance(app.screen, PaletteScreen)
        (title, *_) = app.screen._panel.render_line(0)
        assert title.style is not None
        assert title.style.color == app.palette.style("bold").color


@in_loop
async def test_screenshot_of_light_theme_has_light_background(tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of(session(events(rounds=1)), theme="light")
        async with app.run_test(size=LARGE) as pilot:
            await do(pilot, "screenshot")
        (svg,) = tmp_path.glob("*.svg")
        drawn = svg.read_text()
        assert 'fill="#ffffff"' in drawn
        assert not re.search("#292929|#0e1218|#c5c8c6", drawn)


def test_unknown_theme_is_refused_with_the_names_of_all() -> None:
    result = CliRunner().invoke(main, ["--theme", "solarized"])
    assert result.exit_code == 2
    assert all(name in result.output for name in PALETTES)


def test_sixteen_colours_are_all_that_is_sent(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000", "--theme", "16-colour") as tui:
        tui.wait_for("ENDED")
        tui.read(0.5)
        cells = [cell for row in tui.screen.buffer.values() for cell in row.values()]
    assert any(cell.fg != "default" for cell in cells)
    assert not [c for cell in cells for c in (cell.fg, cell.bg) if re.fullmatch("[0-9a-f]{6}", c)]
