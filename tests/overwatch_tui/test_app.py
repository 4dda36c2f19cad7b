"""The terminal, driven key by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual._xterm_parser import XTermParser
from textual.pilot import Pilot
from textual.strip import Strip

from esper_overwatch.overwatch_tui import keys
from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.box import ConfirmScreen
from esper_overwatch.overwatch_tui.screens.driver import read_escape_and_digit
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.palette import PaletteScreen
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages import events as ev
from tests.cases import mostly_nightly

from .harness import VIEWS, ListFeed, events, in_loop, session

SMALL, LARGE = (80, 24), (120, 40)


def app_of(made: Session | None = None, **options: Any) -> OverwatchApp:
    return OverwatchApp(made or session(events()), **options)


def feed_of(app: OverwatchApp) -> ListFeed:
    feed = app.session.feed
    assert isinstance(feed, ListFeed)
    return feed


def panels(app: OverwatchApp, *names: str) -> list[LinePanel]:
    """The visible panels of the main screen, all or these."""
    return [p for p in app.screen_stack[0].query(LinePanel) if p.display and (not names or p.id in names)]


def shown(app: OverwatchApp, *names: str) -> str:
    """The main screen's lines, as its widgets hold them."""
    return "\n".join(plain(line) for panel in panels(app, *names) for line in panel.lines)


async def press(pilot: Pilot[None], *names: str) -> None:
    await pilot.press(*names)


async def do(pilot: Pilot[None], *lines: str) -> None:
    """Execute lines in the palette."""
    for line in lines:
        await pilot.press("colon", *line, "enter")
        await pilot.pause()


@contextmanager
def within(folder: Path) -> Iterator[None]:
    import os

    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def fingerprint(app: OverwatchApp) -> tuple[Any, ...]:
    """Everything a key can change."""
    return (
        shown(app),
        repr(replace(app.session.view, glyphs=app.session.view.glyphs)),
        len(app.screen_stack),
        app.session.cursor.is_held,
        len(feed_of(app).requests),
        app._exit,
    )


DOCUMENTED = [name for key in keys.KEYS for name in key.keys.split(",") if name] + [
    view.key for view in PANELS.views
]
LEAVING = {"q"}


@pytest.mark.slow
@pytest.mark.parametrize("view", mostly_nightly(VIEWS, "run"))
@in_loop
async def test_no_key_fails_in_any_view_at_start(view: str, tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of()
        async with app.run_test(size=SMALL) as pilot:
            for name in DOCUMENTED:
                if name in LEAVING:
                    continue
                PANELS.show(app.session.view, view)
                await press(pilot, name)
                while len(app.screen_stack) > 1:
                    await press(pilot, "escape")
                app._interrupted = -9.0
            assert app.is_running


@in_loop
@pytest.mark.slow
async def test_every_documented_key_has_an_effect(tmp_path: Path) -> None:
    with within(tmp_path):
        for view, names in _where_keys_work().items():
            app = app_of()
            PANELS.show(app.session.view, view)
            async with app.run_test(size=LARGE) as pilot:
                for name in names:
                    before = fingerprint(app)
                    await press(pilot, name)
                    assert fingerprint(app) != before, f"{name} in {view}"
                    while len(app.screen_stack) > 1:
                        await press(pilot, "escape")
                    app.session.view.message = ""
                    app._interrupted = -9.0


def _where_keys_work() -> dict[str, list[str]]:
    """Each documented key once, in an order in which it has something to do."""
    log = ["k", "up", "pageup", "g", "j", "home", "down", "pagedown", "G", "k", "enter"]
    rest = [n for n in DOCUMENTED if n not in {*log, *LEAVING, "1", "escape", "n", "a", "U"}]
    return {"log": [*log, "escape"], "problems": ["n", "U", "a", "enter", "1"], "run": rest}


@in_loop
async def test_q_leaves_and_ctrl_c_twice_leaves() -> None:
    for names in (("q",), ("ctrl+c", "ctrl+c")):
        app = app_of()
        async with app.run_test(size=SMALL) as pilot:
            await press(pilot, *names)
        assert app._exit
        assert feed_of(app).requests == []


@in_loop
async def test_keys_after_the_one_that_leaves_are_dropped() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        app.exit = lambda *_: None  # type: ignore[method-assign]
        await press(pilot, "q", "T")
        assert len(app.screen_stack) == 1, "nothing is asked any more"


async def press_as_read(app: OverwatchApp, pilot: Pilot[None], typed: str) -> None:
    """What the driver reads from a terminal."""
    read_escape_and_digit()
    parser = XTermParser()
    for read in (*parser.feed(typed), *parser.feed("")):
        read.set_sender(app)
        app.post_message(read)
    await pilot.pause()


@in_loop
async def test_escape_and_key_at_once_are_both() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "3")
        await press_as_read(app, pilot, "\x1b4")
        assert app.session.view.name == "seeds"
        await press_as_read(app, pilot, "\x1bn")
        assert "acknowledged" in app.session.view.message
        await press(pilot, "alt+q")
    assert app._exit


@in_loop
async def test_one_ctrl_c_only_asks() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "ctrl+c")
        assert "ctrl+c again" in shown(app)
        assert not app._exit


@in_loop
async def test_ctrl_z_is_textuals_own_suspension() -> None:
    app = app_of()
    async with app.run_test(size=SMALL):
        _, binding, enabled, _ = app.screen.active_bindings["ctrl+z"]
        assert binding.action == "app.suspend_process"
        assert enabled


@in_loop
async def test_questions_stand_in_the_middle_of_the_screen() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "T")
        box = app.screen.query_one(LinePanel).region
        assert 0 < box.x == 80 - box.right
        assert abs(box.y - (24 - box.bottom)) <= 1


@pytest.mark.parametrize(
    ("key", "method", "params"),
    [
        ("T", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}),
        ("P", "profiler.start", {"epochs": 2}),
        ("X", "pause", {}),
        ("C", "checkpoint", {}),
    ],
)
@in_loop
async def test_command_asks_first_and_is_followed_to_its_end(
    key: str, method: str, params: dict[str, Any]
) -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        for refusal in ("n", "enter", "space", "escape"):
            await press(pilot, key)
            assert isinstance(app.screen, ConfirmScreen)
            await press(pilot, refusal)
        assert feed_of(app).requests == []
        await press(pilot, key, "y")
        ((id_, asked, with_params),) = feed_of(app).requests
        assert (asked, with_params) == (method, params)
        assert "SENT" in shown(app)
        feed_of(app).answer({"state": "accepted"})
        app.tick()
        assert "ACK 38ms" in shown(app)
        done = ev.CommandDone(id=id_, method=method, result={}, seconds=0.1)
        feed_of(app).items = [_life(done)]
        app.tick()
        app.paint()
        assert "DONE" in shown(app)
        PANELS.show(app.session.view, "commands")
        app.paint()
        assert method.replace("telemetry.", "") in shown(app)


def _life(data: Any) -> Event:
    from esper_overwatch.protocol.messages.events import Context, spec_of

    return Event(
        seq=10**6, ts=2 * 10**15, type=spec_of(type(data)).type, stream="life", tv=1, ctx=Context(), data=data
    )


@in_loop
async def test_pause_turns_into_resume_and_start_into_stop() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).items = [
            _life(ev.RunStateChanged(state="PAUSED")),
            replace(_life(ev.ProfilerStarted(epochs=2)), seq=10**6 + 1),
        ]
        app.tick()
        await press(pilot, "X", "y", "P", "y")
        assert [method for _, method, _ in feed_of(app).requests] == ["resume", "profiler.stop"]


@in_loop
async def test_read_only_has_no_commands() -> None:
    app = app_of(session(events(rounds=1), ViewState(read_only=True)))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "T", "P", "X", "C", "ctrl+x")
        assert len(app.screen_stack) == 1
        assert "read-only: this terminal sends no commands" in shown(app)
        assert "escalate" not in shown(app, "box-keys")
        await press(pilot, "question_mark", *"telemetry")
        assert "escalate" not in "\n".join(plain(line) for line in app.screen.query_one(LinePanel).lines)
    assert feed_of(app).requests == []


@in_loop
async def test_nothing_is_sent_into_a_dead_link() -> None:
    app = app_of(session(events(rounds=1), state="lost"))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "T")
        assert len(app.screen_stack) == 1
        assert "no daemon is connected" in shown(app)
        await press(pilot, "y")
    assert feed_of(app).requests == []


@in_loop
async def test_the_help_names_every_action_and_searches() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "question_mark")
        assert isinstance(app.screen, PaletteScreen)
        for key in keys.ACTIONS:
            app.screen._set(key.name)
            (found,) = [entry for entry in app.screen._entries if entry.name == key.name]
            assert (found.about, found.key) == (key.help, key.shown)
        app.screen._set("")
        await press(pilot, *"smooth", "enter")
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert "charts are smoothed" in shown(app)


def test_at_most_thirty_actions_have_keys() -> None:
    assert len(keys.KEYS) <= 30
    names = [key.name for key in keys.ACTIONS]
    assert len(set(names)) == len(names)


@in_loop
async def test_views_env_entry_and_detail() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        for i, view in enumerate(VIEWS):
            await press(pilot, str(i + 1))
            assert app.session.view.name == view
        await press(pilot, "1")
        await do(pilot, "env 13")
        assert app.session.view.env == 13
        await do(pilot, "env 99")
        assert "env 99 does not exist: 0 to 15" in shown(app)
        await do(pilot, "1")
        assert app.session.view.env == 1
        assert "what happened" in shown(app)
        await press(pilot, "j")
        assert "env03" in shown(app), "the next in the order of attention"
        await press(pilot, "escape", "escape")
        assert "what happened" not in shown(app)


@in_loop
async def test_tab_cycles_the_panels_of_a_view() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        seen = []
        for _ in range(6):
            await press(pilot, "tab")
            seen.append(app.session.view.focus)
        assert seen == ["env", "policy", "log", "curves", "incidents", "envs"]
        assert app.session.view.name == "run"
        await pilot.resize_terminal(80, 24)
        await press(pilot, "4", "tab")
        assert "MEAN  DRIFT" in shown(app), "a panel that has no place is shown alone"
        assert "SLOT" not in shown(app)
        await do(pilot, "previous_panel")
        assert "SLOT" in shown(app)
        await press(pilot, "2", "tab")
        assert app.session.view.name == "policy", "a view of one panel leads on"


@in_loop
async def test_the_worst_incident_is_reached_acknowledged_and_gone() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        assert "Problems(3)" in shown(app, "box-views")
        assert "CRIT  not finite" in shown(app, "box-strip")
        await press(pilot, "n", "a")
        assert "Problems(2)" in shown(app, "box-views")
        assert "WARN  loss not finite: env13" in shown(app, "box-strip")
        await press(pilot, "n")
        assert app.session.view.env == 13
        await do(pilot, "mute")
        assert "Problems(1)" in shown(app, "box-views")
        await do(pilot, "ack_all")
        assert "[2 Problems]" in shown(app, "box-views")
        await press(pilot, "1")
        assert "CRIT  not finite" in shown(app, "box-strip"), "acknowledged is not over"


@in_loop
async def test_frozen_panels_stand_still_while_events_are_counted() -> None:
    made = session(events(rounds=3))
    app = app_of(made)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "space")
        table = shown(app, "box-envs")
        feed_of(app).items = list(events()[len(events(rounds=3)) :])
        coming = len(feed_of(app).items)
        app.tick()
        app.paint()
        text = shown(app)
        assert f"FROZEN 08:54:03 +{coming}" in text
        assert "r3/400" in text, "the header is of the same moment as the panels"
        assert "r6/400" not in text
        assert shown(app, "box-envs") == table
        assert "CRIT  not finite" in text, "the strip goes on"
        await press(pilot, "space")
        assert shown(app, "box-envs") != table
        assert "FROZEN" not in shown(app)


@in_loop
async def test_too_small_says_so_and_recovers() -> None:
    app = app_of()
    async with app.run_test(size=(79, 24)) as pilot:
        await pilot.pause()
        assert "needs 80x24 (now 79x24)" in shown(app)
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert "RETURN AND ACCURACY" in shown(app)


@in_loop
async def test_a_screenshot_is_written_as_svg_and_text(tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of()
        async with app.run_test(size=LARGE) as pilot:
            await do(pilot, "screenshot")
        (svg,) = tmp_path.glob("*.svg")
        (text,) = tmp_path.glob("*.txt")
        drawn = svg.read_text()
        assert drawn.lstrip().startswith("<svg")
        assert "@font-face" not in drawn
        assert "Fira Code" not in drawn
        assert "RETURN AND ACCURACY" in text.read_text()


def strips(app: OverwatchApp) -> dict[tuple[str | None, int], Strip]:
    """Lines as they are given to the compositor, by panel and number."""
    return {(each.id, y): each.render_line(y) for each in panels(app) for y in range(each.size.height)}


@in_loop
async def test_only_lines_that_changed_are_made_anew() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        await pilot.pause()
        app.paint()
        before = strips(app)
        app.paint()
        assert all(strip is before[place] for place, strip in strips(app).items())
        last = next(e for e in reversed(events()) if isinstance(e.data, ev.EpochFinished))
        accuracy = list(last.data.val_accuracy)
        accuracy[5] += 0.1
        app.session.state.epoch = replace(last.data, val_accuracy=accuracy)
        app.paint()
        changed = [place for place, strip in strips(app).items() if strip is not before[place]]
        assert len(changed) == 2, "the row of env 05 and the means"


@in_loop
async def test_colours_can_be_left_out() -> None:
    app = app_of(colour=False)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.pause()
        for panel in panels(app):
            for segment in panel.render_line(0):
                assert segment.style is None or segment.style.color is None
