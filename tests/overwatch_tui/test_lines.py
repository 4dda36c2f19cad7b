"""What is typed: filters of the lists, commands and questions for the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.filters import parse_filter
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.page import AnswerScreen
from esper_overwatch.overwatch_tui.settings.keymap import remap_keys
from esper_overwatch.overwatch_tui.source.state_files import MAX_LINES, HistoryFile
from esper_overwatch.protocol.errors import RequestError

from .harness import ListFeed, events, in_loop, session

SIZE = (120, 40)
STOP = {"mode": "after_epoch", "checkpoint": True}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def app_of(**view: Any) -> OverwatchApp:
    return OverwatchApp(session(events(), ViewState(**view)))


def feed_of(app: OverwatchApp) -> ListFeed:
    feed = app.session.feed
    assert isinstance(feed, ListFeed)
    return feed


def text_of(app: OverwatchApp, box: str = "") -> str:
    """The lines of the screen on top, or of one of its panels."""
    panels = [p for p in app.screen.query(LinePanel) if p.display and (not box or p.id == f"box-{box}")]
    return "\n".join(plain(line) for panel in panels for line in panel.lines)


async def write(pilot: Pilot[None], text: str) -> None:
    pilot.app.screen.post_message(Paste(text))
    await pilot.pause()


@in_loop
async def test_a_filter_shows_some_envs_and_escape_all() -> None:
    app = app_of(sort="env")
    async with app.run_test(size=SIZE) as pilot:
        assert "ENVS 16" in text_of(app, "envs")
        await pilot.press("slash")
        await write(pilot, "st:stal")
        await pilot.press("enter")
        assert "ENVS 1 of 16" in text_of(app, "envs")
        assert "/st:stal" in text_of(app, "envs")
        assert " 02 stalled" in text_of(app, "envs")
        assert " 12 " not in text_of(app, "envs")
        await pilot.press("slash")
        assert isinstance(app.screen, InputLine)
        assert app.screen.text == "st:stal", "it can be changed"
        await pilot.press("ctrl+u", "enter")
        assert "ENVS 16" in text_of(app, "envs")
        await pilot.press("slash")
        await write(pilot, "acc<0")
        await pilot.press("enter")
        assert "no env passes /acc<0; Esc shows all" in text_of(app, "envs")
        await pilot.press("escape")
        assert "ENVS 16" in text_of(app, "envs")


@pytest.mark.parametrize(
    ("view", "filter_", "shown", "hidden"),
    [
        ("incidents", "kind:stalled", "does not rise", "gradient"),
        ("seeds", "st:blend", "BLENDING", "TRAINING"),
        ("log", "tag:gov", "rollback", "DORM"),
        ("commands", "what:escalate", "escalate", "profiler.start"),
    ],
)
@in_loop
async def test_every_list_has_a_filter(view: str, filter_: str, shown: str, hidden: str) -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        PANELS.show(app.session.view, view)
        await pilot.press("slash")
        await write(pilot, filter_)
        await pilot.press("enter")
        assert shown in text_of(app, view)
        assert hidden not in text_of(app, view)
        await pilot.press("slash", "ctrl+u")
        await write(pilot, "zzzz")
        await pilot.press("enter")
        assert "passes /zzzz; Esc shows all" in text_of(app, view)
        await pilot.press("escape")
        assert app.session.view.filters == {}


@in_loop
async def test_a_list_names_escape_only_where_it_shows_all() -> None:
    app = app_of()
    async with app.run_test(size=(200, 60)) as pilot:
        for panel, view in (("log", "run"), ("commands", "machine")):
            app.session.view.name = view
            app.session.view.filters[panel] = parse_filter("zzzz", ())  # type: ignore[assignment]
            app.paint()
            hint = "passes /zzzz; Esc shows all"
            assert "passes /zzzz" in text_of(app, panel)
            assert hint not in text_of(app, panel), "another panel has the focus"
            app.session.view.focus = panel
            app.paint()
            assert hint in text_of(app, panel)
            await pilot.press("h")
            assert hint not in text_of(app, panel), "it lets go of the charts' cursor first"
            await pilot.press("escape", "enter")
            assert hint not in text_of(app, panel), "it closes the detail first"
            await pilot.press("escape")
            assert hint in text_of(app, panel)
            await pilot.press("escape")
            assert app.session.view.filters == {}
            assert app.session.view.focus == panel
            app.session.view.show_view("run")


@in_loop
async def test_a_list_names_the_chosen_key_of_escape() -> None:
    app = app_of(keys=remap_keys({"step_back": "b"}, ""))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *"acc<0", "enter")
        assert "no env passes /acc<0; b shows all" in text_of(app, "envs")
        await pilot.press("b")
        assert "ENVS 16" in text_of(app, "envs")


@in_loop
async def test_enter_shows_the_command_that_the_filter_left() -> None:
    app = app_of()
    for method in ("pause", "resume", "checkpoint"):
        app.session.send(method, {})
    async with app.run_test(size=SIZE) as pilot:
        PANELS.show(app.session.view, "commands")
        await pilot.press("slash")
        await write(pilot, "what:pause")
        await pilot.press("enter", "enter")
        assert "method      pause" in text_of(app, "commands")
        await pilot.press("escape", "slash", "ctrl+u")
        await write(pilot, "zzzz")
        await pilot.press("enter", "enter")
        assert "no command passes /zzzz" in text_of(app, "commands")


@in_loop
async def test_a_wrong_filter_is_told_and_can_be_mended() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        await write(pilot, "speed>3")
        await pilot.press("enter")
        assert isinstance(app.screen, InputLine)
        assert "speed is not a field here" in text_of(app)
        await pilot.press("escape")
        assert app.session.view.filters == {}
        await pilot.press("3", "slash")
        assert not isinstance(app.screen, InputLine)
        assert "cannot be filtered" in text_of(app, "status")


@in_loop
async def test_a_command_is_completed_explained_and_sent() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("colon")
        await write(pilot, "tele")
        await pilot.press("tab")
        assert "telemetry.escalate" in text_of(app)
        assert "epochs" in text_of(app), "its parameters are offered"
        await write(pilot, "epochs=9")
        assert "for exactly so many epochs" in text_of(app)
        await pilot.press("enter")
        ((_, method, params),) = feed_of(app).requests
        assert (method, params) == ("telemetry.escalate", {"epochs": 9})
        assert "SENT" in text_of(app)
        await pilot.press("colon", "up")
        assert isinstance(app.screen, InputLine)
        assert app.screen.text == "telemetry.escalate epochs=9"
        await pilot.press("escape")
        assert len(feed_of(app).requests) == 1


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@in_loop
async def test_a_paste_is_taken_up_to_its_line_end(end: str) -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("colon")
        await write(pilot, f"mark first{end}stop{end}")
        assert isinstance(app.screen, InputLine)
        assert app.screen.text == "mark first"
        await write(pilot, end)
        assert app.screen.text == "mark first"


@in_loop
async def test_spaces_alone_are_a_line_that_does_nothing() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("colon", "space", "space")
        assert " leave " in text_of(app), "all is offered"
        await pilot.press("enter")
        assert len(app.screen_stack) == 1
        assert feed_of(app).requests == []


@in_loop
async def test_stacks_are_asked_for_until_shares_are_known() -> None:
    app = app_of()
    frames = ["trainer/loop.py:9 Trainer.run", "trainer/hosts/host_group.py:283 HostGroup._step"]
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("colon")
        await write(pilot, "stacks")
        await pilot.press("enter")
        answers = 0
        while not isinstance(app.screen, AnswerScreen):
            if len(feed_of(app).requests) > answers:
                answers += 1
                thread = {
                    "id": 7,
                    "name": "MainThread",
                    "cpu_us": answers,
                    "frames": frames[: 1 + answers % 2],
                }
                feed_of(app).answer({"threads": [thread]})
            app.tick()
            await pilot.pause(0.01)
        assert {method for _, method, _ in feed_of(app).requests} == {"stacks"}
        assert answers > 2
        assert f"MainThread: 0% of a core, {answers} samples" in text_of(app)
        assert " 100%  Trainer.run (trainer/loop.py:9)" in text_of(app)
        assert "HostGroup._step (trainer/hosts/host_group.py:283)" in text_of(app)


@in_loop
async def test_a_question_shows_its_answer() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("colon")
        await write(pilot, "param.get")
        await pilot.press("enter")
        assert [method for _, method, _ in feed_of(app).requests] == ["param.get"]
        feed_of(app).answer({"parameters": {"ppo.learning_rate": {"value": 0.001}}})
        app.tick()
        await pilot.pause()
        assert isinstance(app.screen, AnswerScreen)
        assert "ppo.learning_rate value 0.001" in text_of(app)
        assert app.screen.query_one(LinePanel).size == app.size, "it has all of the screen"
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("colon")
        await write(pilot, "op.get x")
        await pilot.press("enter")
        feed_of(app).answer(error=RequestError("no_such_op", "there is no command x"))
        app.tick()
        app.paint()
        await pilot.pause()
        assert len(app.screen_stack) == 1, [type(s) for s in app.screen_stack]
        assert "there is no command x" in text_of(app, "status")


@pytest.mark.parametrize("way", ["ctrl+x", "colon"])
@in_loop
async def test_a_run_is_stopped_by_typing_its_name(way: str) -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:

        async def begin() -> None:
            await pilot.press(way)
            if way == "colon":
                await write(pilot, "stop")
                await pilot.press("enter")

        name = app.session.link.name or ""
        await begin()
        await write(pilot, name + "x")
        await pilot.press("enter")
        assert "not the run's name" in text_of(app)
        await pilot.press("escape")
        assert feed_of(app).requests == []
        await begin()
        await write(pilot, name)
        await pilot.press("enter")
        ((_, method, params),) = feed_of(app).requests
        assert method == "stop"
        assert params == (STOP if way == "ctrl+x" else {})


@in_loop
async def test_read_only_asks_but_does_not_command() -> None:
    app = app_of(read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("colon")
        await write(pilot, "pause")
        await pilot.press("enter")
        assert "this terminal is read-only" in text_of(app)
        await pilot.press("ctrl+u")
        await write(pilot, "status")
        await pilot.press("enter")
        assert [method for _, method, _ in feed_of(app).requests] == ["status"]


@in_loop
async def test_keys_typed_into_a_line_do_nothing_else() -> None:
    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *"qTPXC7ua", "ctrl+x", "left", "enter")
        assert feed_of(app).requests == []
        assert app.session.view.name == "run"
        assert app.session.view.filters["envs"].text == "qTPXC7ua"


def test_the_history_is_short_private_and_without_repeats(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"
    history = HistoryFile(path)
    for i in range(MAX_LINES + 5):
        history.add(f"mark {i}")
    history.add("mark 10")
    assert len(history.lines()) == MAX_LINES
    assert history.lines()[-1] == "mark 10"
    assert history.lines().count("mark 10") == 1
    assert path.stat().st_mode & 0o077 == 0
    assert [p.name for p in path.parent.iterdir()] == ["history"]


def test_a_disk_that_refuses_the_history_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = HistoryFile(tmp_path / "file" / "history")
    history.add("mark a")
    assert history.lines() == []


@in_loop
async def test_a_filters_hint_is_whole_or_shows_its_cut() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash")
        shown = " ".join(text_of(app).split())
        assert "acc<60 st:roll -text; empty shows all" in shown
        assert all(field in shown for field in ("env", "anomaly", "drift"))
        await write(pilot, "y" * 100)
        assert f"/…{'y' * 10}" in text_of(app)
    app = app_of(glyphs=ASCII)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash")
        await write(pilot, "y" * 100)
        assert f"/~{'y' * 10}" in text_of(app)
        assert text_of(app).isascii()


@in_loop
async def test_codes_are_explained_until_the_palette_was_used() -> None:
    legend = "T11: TRAINING for 11 epochs   B.4: BLENDING, alpha 0.4   ? explains the rest"
    for is_shown in (True, False):
        app = app_of()
        async with app.run_test(size=SIZE) as pilot:
            assert (legend in text_of(app, "status")) == is_shown
            await pilot.press("colon", *"smooth", "enter")
