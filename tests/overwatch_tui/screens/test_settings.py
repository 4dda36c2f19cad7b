"""The settings screen and chosen keys, pressed key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.notifier import parse_quiet_hours
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.box import ExportScreen
from esper_overwatch.overwatch_tui.screens.call import CallScreen
from esper_overwatch.overwatch_tui.screens.help import HelpScreen
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.overwatch_tui.screens.runs import RunsScreen
from esper_overwatch.overwatch_tui.screens.settings import SettingsScreen
from esper_overwatch.overwatch_tui.settings.sources import Settings, read_settings
from esper_overwatch.overwatch_tui.settings.table import SETTINGS
from esper_overwatch.overwatch_tui.source.run_list import RunList
from esper_overwatch.overwatch_tui.start import RunChoice
from tests.overwatch_tui.harness import VIEWS, events, in_loop, session
from tests.overwatch_tui.runs import FakeMachine
from tests.overwatch_tui.scenes import published_events
from tests.overwatch_tui.test_app import SMALL, press, shown, within
from tests.overwatch_tui.test_runs import RUNS


def _app(settings: Settings, **options: Any) -> OverwatchApp:
    view = ViewState(keys=settings.keys)
    return OverwatchApp(session(events(rounds=1), view), settings=settings, **options)


def _text(app: OverwatchApp) -> str:
    assert isinstance(app.screen, SettingsScreen)
    return "\n".join(plain(line) for line in app.screen._panel.lines)


@in_loop
async def test_changes_show_at_once_and_are_written(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text("# kept\nrefresh = 2\n")
    app = _app(read_settings({}, path=path))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "f2")
        assert "Colours; auto = by what the terminal can show." in _text(app)
        await press(pilot, "enter", "enter")
        assert app.palette.name == "light"
        assert "wrote theme = light" in _text(app)
        await press(pilot, "j", "l")
        assert app.session.view.rate == 4.0
        await press(pilot, "x")
        assert app.session.view.rate == 1.0
        assert "took refresh out of the file" in _text(app)
        await press(pilot, "j", "j", "enter")
        assert "from the next start on" in _text(app)
        await press(pilot, "escape")
        assert len(app.screen_stack) == 1
    assert path.read_text() == '# kept\ntheme = "light"\nmouse = true\n'
    assert read_settings({}, path=path)["mouse"] is True


@in_loop
async def test_source_above_the_file_is_named() -> None:
    app = _app(read_settings({"ESPER_TUI_SORT": "drift"}))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "f2", *["j"] * list(SETTINGS).index("sort"))
        row = next(line for line in _text(app).split("\n") if "sort" in line)
        assert "drift" in row
        assert "ESPER_TUI_SORT" in row
        await press(pilot, "h")
        assert "the next start still has ESPER_TUI_SORT" in _text(app)
        assert app.session.view.sort == "gradient"


@in_loop
async def test_read_only_terminal_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    app = _app(read_settings({}, {"read_only": True}, path), choice=RunChoice(read_only=True))
    async with app.run_test(size=SMALL) as pilot:
        app.session.view.read_only = True
        await press(pilot, "f2", "enter")
        assert app.palette.name == "dark"
        assert "in this terminal only" in _text(app)
        await press(pilot, "G", "enter")
        assert "read-only: read_only is not changed" in _text(app)
        assert app.session.view.read_only
    assert not path.exists()


@in_loop
async def test_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    app = _app(Settings(tmp_path / "file" / "tui.toml"))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "f2", "enter")
        assert "cannot be" in _text(app)
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
        await press(pilot, "f2", *["j"] * list(SETTINGS).index("quiet"), "enter", "ctrl+u")
        await press(pilot, *"25:00-7:00", "enter")
        assert isinstance(app.screen, InputLine), "what is no time of day is not taken"
        await press(pilot, "ctrl+u", *"23:00-6:30", "enter")
        assert "wrote quiet = 23:00-6:30" in _text(app)
        assert app.notifier.quiet == parse_quiet_hours("23:00-6:30")
        await press(pilot, "l")
        assert app.notifier.quiet is None
        await press(pilot, "l")
        assert app.notifier.quiet == parse_quiet_hours("22:00-07:00")
    assert path.read_text() == 'quiet = "22:00-07:00"\n'


@in_loop
async def test_chosen_keys_act_in_every_view_and_modal(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text('[keys]\ndown = "ctrl+n"\nlast_row = "f9"\nleave = "ctrl+q"\nfreeze = "f5"\n')
    app = _app(read_settings({}, path=path), choice=RunChoice(RunList([FakeMachine(RUNS)])))
    async with app.run_test(size=SMALL) as pilot:
        for view in VIEWS:
            PANELS.show(app.session.view, view)
            assert await _freeze_key(pilot, app, "f5"), view
        await press(pilot, "1", "question_mark", "ctrl+n")
        assert isinstance(app.screen, HelpScreen)
        assert app.screen.top == 1
        await press(pilot, "f9")
        assert app.screen.top > 1
        await press(pilot, "ctrl+q")
        assert len(app.screen_stack) == 1, "what leaves closes a page, as q does"
        await press(pilot, "f2", "ctrl+n", "ctrl+n")
        assert isinstance(app.screen, SettingsScreen)
        assert "▶ glyphs" in _text(app)
        await press(pilot, "escape", "R")
        assert isinstance(app.screen, RunsScreen)
        first = app.choice.view.selected.get("runs")
        await press(pilot, "ctrl+n")
        assert app.choice.view.selected["runs"] != first
        await press(pilot, "ctrl+q")
    assert app._exit


@in_loop
async def test_chosen_keys_close_the_export_and_choose_no_form(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text('[keys]\nleave = "f6"\nexport = "f7"\ndown = "c"\ncall = "f9"\n')
    with within(tmp_path):
        app = _app(read_settings({}, path=path))
        async with app.run_test(size=SMALL) as pilot:
            for close in ("f6", "f7", "q", "escape"):
                await press(pilot, "f7")
                assert isinstance(app.screen, ExportScreen)
                await press(pilot, close)
                assert len(app.screen_stack) == 1, close
            await press(pilot, "f7", "c")
            assert isinstance(app.screen, ExportScreen)
            assert "wrote" in app.screen.said, "a letter of the box means what the box says"
        assert not app._exit
    assert len(list(tmp_path.glob("*.csv"))) == 1


@in_loop
async def test_chosen_keys_act_in_the_list_of_commands_only(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    path.write_text(
        '[keys]\ndown = ["n", "ctrl+n"]\nnext_incident = "f9"\nup = "b"\ncall = "f7"\nleave = "f6"\n'
    )
    view = ViewState(keys=read_settings({}, path=path).keys)
    app = OverwatchApp(session(published_events(), view))
    app.session.state.loop_commands = {
        "save": {},
        "set_lr": {"parameters": {"name": {"type": "str"}}},
        "stop": {},
    }
    async with app.run_test(size=SMALL) as pilot:
        for close in ("f7", "f6", "escape"):
            await press(pilot, "f7")
            assert isinstance(app.screen, CallScreen)
            await press(pilot, close)
            assert len(app.screen_stack) == 1, close
        await press(pilot, "f7", "n", "ctrl+n", "b", "enter", *"nb")
        assert isinstance(app.screen, CallScreen)
        assert "set_lr" in _lines(app.screen)[1], "the second of three"
        assert any("nb_" in line for line in _lines(app.screen)), "what is typed is typed"
        await press(pilot, "escape", "escape")
        assert len(app.screen_stack) == 1
    assert not app._exit


def _lines(screen: CallScreen) -> list[str]:
    return [plain(line) for line in screen._panel.lines]
