"""Settings in the palette, and chosen keys, pressed key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.notifier import parse_quiet_hours
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.page import AnswerScreen
from esper_overwatch.overwatch_tui.screens.palette import PaletteScreen
from esper_overwatch.overwatch_tui.screens.runs import RunsScreen
from esper_overwatch.overwatch_tui.settings.sources import Settings, read_settings
from esper_overwatch.overwatch_tui.source.run_list import RunList
from esper_overwatch.overwatch_tui.start import RunChoice
from tests.overwatch_tui.harness import VIEWS, events, in_loop, session
from tests.overwatch_tui.runs import FakeMachine
from tests.overwatch_tui.test_app import SMALL, do, press, shown, within
from tests.overwatch_tui.test_runs import RUNS


def _app(settings: Settings, **options: Any) -> OverwatchApp:
    view = ViewState(keys=settings.keys)
    return OverwatchApp(session(events(rounds=1), view), settings=settings, **options)


def _text(app: OverwatchApp) -> str:
    return "\n".join(plain(line) for line in app.screen.query_one(LinePanel).lines)


@in_loop
async def test_changes_show_at_once_and_are_written(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text("# kept\nrefresh = 2\n")
    app = _app(read_settings({}, path=path))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "colon", *"theme", "enter")
        assert "Colours; auto = by what the terminal can show." in _text(app)
        await press(pilot, *"light", "enter")
        await pilot.pause()
        assert app.palette.name == "light"
        assert "wrote theme = light" in shown(app)
        await do(pilot, "refresh 4")
        assert app.session.view.rate == 4.0
        await do(pilot, "refresh default")
        assert app.session.view.rate == 1.0
        assert "took refresh out of the file" in shown(app)
        await do(pilot, "mouse true")
        assert "from the next start on" in shown(app)
    assert path.read_text() == '# kept\ntheme = "light"\nmouse = true\n'
    assert read_settings({}, path=path)["mouse"] is True


@in_loop
async def test_source_above_the_file_is_named(tmp_path: Path) -> None:
    app = _app(read_settings({"ESPER_TUI_SORT": "drift"}, path=tmp_path / "tui.toml"))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "colon", *"sort ")
        assert "drift (ESPER_TUI_SORT)" in _text(app)
        await press(pilot, *"gradient", "enter")
        await pilot.pause()
        assert "the next start still has ESPER_TUI_SORT" in shown(app)
        assert app.session.view.sort == "gradient"


@in_loop
async def test_read_only_terminal_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    app = _app(read_settings({}, {"read_only": True}, path), choice=RunChoice(read_only=True))
    async with app.run_test(size=SMALL) as pilot:
        app.session.view.read_only = True
        await do(pilot, "theme light")
        assert app.palette.name == "light"
        assert "in this terminal only" in shown(app)
        await do(pilot, "read_only false")
        assert "read-only: read_only is not changed" in shown(app)
        assert app.session.view.read_only
    assert not path.exists()


@in_loop
async def test_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    app = _app(Settings(tmp_path / "file" / "tui.toml"))
    async with app.run_test(size=SMALL) as pilot:
        await do(pilot, "theme light")
        assert "cannot be" in app.session.view.message
        assert app.palette.name == "dark"


async def _freeze_key(pilot: Pilot[None], app: OverwatchApp, key: str) -> bool:
    before = app.session.cursor.is_held
    await press(pilot, key)
    return app.session.cursor.is_held != before


@in_loop
async def test_chosen_keys_work_and_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text('[keys]\nfreeze = "F5"\nleave = "ctrl+q"\n')
    app = _app(read_settings({}, path=path))
    async with app.run_test(size=(120, 40)) as pilot:
        assert await _freeze_key(pilot, app, "f5")
        assert await _freeze_key(pilot, app, "f5")
        assert not await _freeze_key(pilot, app, "space")
        assert "no such key: space" in shown(app)
        assert "F5 freeze" in shown(app, "box-keys")
        assert "^Q quit" in shown(app, "box-keys")
        await press(pilot, "q")
        assert not app._exit
        await press(pilot, "ctrl+q")
    assert app._exit


@in_loop
async def test_quiet_hours_are_typed_and_hold_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    app = _app(read_settings({}, path=path))
    async with app.run_test(size=SMALL) as pilot:
        await do(pilot, "quiet 25:00-7:00")
        assert isinstance(app.screen, PaletteScreen), "what is no time of day is not taken"
        await press(pilot, "ctrl+u", *"quiet 23:00-6:30", "enter")
        await pilot.pause()
        assert "wrote quiet = 23:00-6:30" in shown(app)
        assert app.notifier.quiet == parse_quiet_hours("23:00-6:30")
        await do(pilot, "quiet off")
        assert app.notifier.quiet is None
    assert path.read_text() == 'quiet = "off"\n'


@in_loop
async def test_chosen_keys_act_in_every_view_and_modal(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text('[keys]\ndown = "ctrl+n"\nenter = "f9"\nleave = "ctrl+q"\nfreeze = "f5"\n')
    app = _app(read_settings({}, path=path), choice=RunChoice(RunList([FakeMachine(RUNS)])))
    async with app.run_test(size=SMALL) as pilot:
        for view in VIEWS:
            PANELS.show(app.session.view, view)
            assert await _freeze_key(pilot, app, "f5"), view
        app.push_screen(AnswerScreen(":status", [str(n) for n in range(99)], app.palette))
        await pilot.pause()
        at_top = _text(app)
        await press(pilot, "j")
        assert _text(app) == at_top
        await press(pilot, "ctrl+n")
        assert _text(app) != at_top
        await press(pilot, "enter")
        assert isinstance(app.screen, AnswerScreen)
        await press(pilot, "f9")
        assert not isinstance(app.screen, AnswerScreen)
        await press(pilot, "R")
        assert isinstance(app.screen, RunsScreen)
        first = app.choice.view.selected.get("runs")
        await press(pilot, "ctrl+n")
        assert app.choice.view.selected["runs"] != first
        await press(pilot, "ctrl+q")
    assert app._exit


@in_loop
async def test_key_of_an_action_with_a_value_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text('[keys]\nexport = "f7"\nsmooth = "w"\n')
    with within(tmp_path):
        app = _app(read_settings({}, path=path))
        async with app.run_test(size=SMALL) as pilot:
            await press(pilot, "w")
            assert "smoothed" in shown(app)
            await press(pilot, "f7")
            assert "csv  json  svg  txt" in _text(app)
            await press(pilot, *"csv", "enter")
            await pilot.pause()
            assert "wrote" in shown(app)
    assert len(list(tmp_path.glob("*.csv"))) == 1
