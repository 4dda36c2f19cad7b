"""The time cursor: every view shows its moment, in a live run and in a recorded one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.client.items import LinkChanged, Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import FolderError

from . import journal
from .harness import ListFeed, events, folded, in_loop
from .test_app import LARGE, SMALL, do, press, shown

ROUND_EPOCH = re.compile(r"r(?:ound )?(\d+)/400  e(?:poch )?(\d+)/24")


def live() -> tuple[OverwatchApp, ListFeed]:
    """An app that joined at the end of the first round and has seen five more."""
    found = events()
    joined = next(i for i, event in enumerate(found) if event.ctx.round == 2)
    feed = ListFeed([LinkChanged("live"), Reset("run digits-7f3a, boot b1"), *found[:joined]])
    session = Session(feed, ViewState())
    session.tick()
    feed.items = list(found[joined:])
    session.tick()
    return OverwatchApp(session), feed


def recorded(path: Path, speed: float = math.inf, rounds: int = 6) -> OverwatchApp:
    feed = ReplayFeed(journal.write(path / "events.jsonl", rounds=rounds), speed)
    return OverwatchApp(Session(feed, ViewState(read_only=True)))


def clock(app: OverwatchApp) -> tuple[int, int]:
    """(round, epoch) in the header."""
    found = ROUND_EPOCH.search(shown(app))
    assert found is not None, shown(app)
    return int(found[1]), int(found[2])


def settle(app: OverwatchApp) -> None:
    """Until the cursor has arrived."""
    for _ in range(10_000):
        app.tick()
        if not app.session.cursor.is_seeking:
            break
    app.tick()
    app.paint()


async def walk(app: OverwatchApp, pilot: object, *keys: str) -> tuple[int, int]:
    """Press keys, one after the other has been followed."""
    for key in keys:
        await press(pilot, key)
        settle(app)
    return clock(app)


@in_loop
async def test_epochs_of_a_live_run_are_stepped() -> None:
    app, feed = live()
    async with app.run_test(size=SMALL) as pilot:
        assert clock(app) == (6, 24)
        assert await walk(app, pilot, "comma") == (6, 23)
        assert await walk(app, pilot, "colon", *"go_to r6", "enter") == (6, 1)
        assert await walk(app, pilot, "comma") == (5, 24)
        assert "FROZEN" in shown(app)
        epochs = [event for event in events() if event.type == "epoch"]
        assert app.session.shown_inputs().state.epoch == epochs[-25].data
        assert await walk(app, pilot, "full_stop") == (6, 1)
        feed.items = [events()[-1]]
        settle(app)
        assert clock(app) == (6, 1), "what comes in meanwhile does not move it"
        assert await walk(app, pilot, "0") == (6, 24)
        assert "FROZEN" not in shown(app)
        assert await walk(app, pilot, "comma", "0") == (6, 24)


@in_loop
async def test_live_run_of_an_older_daemon_begins_with_joining() -> None:
    app, _ = live()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "colon", *"go_to r1e3", "enter")
        settle(app)
        assert "what was before joining cannot be read: no method 'history'" in shown(app)
        assert clock(app) == (6, 24)
        assert await walk(app, pilot, "colon", *"go_to r2e1", "enter") == (2, 1)
        assert await walk(app, pilot, "comma") == (1, 24), "the moment of joining"
        assert await walk(app, pilot, "comma") == (1, 24)
        assert "cannot be read" in shown(app)


@in_loop
async def test_incidents_are_stepped_to_where_they_began() -> None:
    app, _ = live()
    async with app.run_test(size=SMALL) as pilot:
        await walk(app, pilot, "left_square_bracket")
        first = app.session.shown_inputs()
        newest = max(record.data.since for record in first.state.incidents.waiting())
        assert first.state.ts == newest
        at = app.session.cursor.shown.position
        await walk(app, pilot, "left_square_bracket")
        assert app.session.cursor.shown.position < at
        await walk(app, pilot, "right_square_bracket")
        assert app.session.cursor.shown.position == at
        await walk(app, pilot, "right_square_bracket")
        assert not app.session.cursor.is_held, "after the last one it is live again"


@in_loop
async def test_prompt_goes_to_a_time_and_refuses_nonsense() -> None:
    app, _ = live()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "colon", *"go_to soon")
        prompt = app.screen
        assert isinstance(prompt, InputLine)
        assert prompt.text == "go_to soon"
        await press(pilot, "enter")
        await pilot.pause()
        assert "'soon' is not a moment; for example 14:05" in shown(app)
        await press(pilot, "colon", *"go_to -9x", "backspace", "s", "enter")
        settle(app)
        inputs = app.session.shown_inputs()
        assert inputs.now == events()[-1].ts - 9 * SECOND
        assert 0 <= inputs.now - inputs.state.ts < SECOND


@in_loop
async def test_recording_pauses_steps_seeks_and_plays_on(tmp_path: Path) -> None:
    app = recorded(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        while not app.session.feed.is_over:  # type: ignore[attr-defined]
            app.tick()
        assert await walk(app, pilot, "comma") == (6, 23)
        assert await walk(app, pilot, "colon", *"go_to r2e5", "enter") == (2, 5)
        assert "FROZEN 08:53" in shown(app)
        assert await walk(app, pilot, "full_stop", "full_stop") == (2, 7)
        await press(pilot, "colon", *"go_to start", "enter")
        settle(app)
        assert app.session.cursor.shown.position == 0
        assert await walk(app, pilot, "0") == (6, 24)
        await walk(app, pilot, "full_stop")
        assert "the recording ends here" in shown(app)
        played = app.session.state
        assert played.epoch == next(e.data for e in reversed(events()) if e.type == "epoch")
        assert repr(played.incidents) == repr(folded(events()).incidents)


@in_loop
async def test_recording_that_vanishes_stays_where_it_is(tmp_path: Path) -> None:
    app = recorded(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        while not app.session.feed.is_over:  # type: ignore[attr-defined]
            app.tick()
        assert await walk(app, pilot, "comma") == (6, 23)
        (tmp_path / "events.jsonl").unlink()
        assert await walk(app, pilot, "comma") == (6, 23)
        assert "cannot read the journal" in shown(app)
        assert not app.session.cursor.is_seeking


@in_loop
async def test_recording_that_vanishes_while_played_says_so(tmp_path: Path) -> None:
    app = recorded(tmp_path, speed=1.0)
    feed = app.session.feed
    assert isinstance(feed, ReplayFeed)

    def vanishing() -> Iterator[Event]:
        yield from events()[:40]
        raise FolderError("cannot read the journal events.jsonl: No such file or directory")

    feed._events, feed.speed = vanishing(), math.inf
    async with app.run_test(size=SMALL):
        for _ in range(10_000):  # a tick stops folding after a time, on a busy machine before the end
            app.tick()
            if feed.is_over:
                break
        app.paint()
        assert feed.is_over
        assert "cannot read the journal" in shown(app)
        assert app.session.state.log[-1].seq == 0, "and in the log, where it stays"
    feed._events, feed._next = vanishing(), events()[0]
    with pytest.raises(FolderError):
        app.session.wait(after_round=0)


@pytest.mark.slow
@in_loop
async def test_steps_pressed_on_the_way_all_count(tmp_path: Path) -> None:
    app = recorded(tmp_path, speed=0.01)  # nothing is played before Space, however slow the machine
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "space")
        settle(app)
        for by in (1,) * 5:  # faster than any tick
            app.action_step_epochs(by)
        settle(app)
        assert clock(app) == (1, 5), "forward, into what was not played"
        await walk(app, pilot, "colon", *"go_to r3", "enter")
        for by in (-1, -1, -1, 1):
            app.action_step_epochs(by)
        settle(app)
        assert clock(app) == (2, 23)
        for _ in range(60):
            app.action_step_epochs(-1)
        settle(app)
        assert clock(app) == (1, 1)
        assert "no epoch before this moment" in shown(app)
        app.action_step_epochs(1)
        app.action_step_epochs(1)
        app.action_freeze()
        settle(app)
        assert clock(app) == (1, 1), "Space stops where it is"
        assert await walk(app, pilot, "full_stop") == (1, 2)


@in_loop
async def test_recording_is_sought_beyond_what_was_played(tmp_path: Path) -> None:
    app = recorded(tmp_path, speed=0.01)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "space")
        settle(app)
        assert await walk(app, pilot, "full_stop", "full_stop", "full_stop") == (1, 3)
        assert await walk(app, pilot, "colon", *"go_to r4", "enter") == (4, 1)
        assert await walk(app, pilot, "comma") == (3, 24)
        await walk(app, pilot, "right_square_bracket")
        began = [e for e in events() if e.type == "incident" and e.data.active and e.ctx.round >= 4]
        assert app.session.state.ts == began[0].ts


@in_loop
async def test_speed_of_a_recording_is_in_the_header(tmp_path: Path) -> None:
    app = recorded(tmp_path, speed=1.0)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "space")
        for key, name in (("faster", "×2"), ("slower", "×1"), ("slower", "×0.5")):
            await do(pilot, key)
            settle(app)
            assert f"{name} " in shown(app)
        await do(pilot, *["faster"] * 12)
        settle(app)
        assert "×max" in shown(app)
        before = app.session.cursor.shown.position
        for _ in range(20):
            app.tick()
        assert app.session.cursor.shown.position == before, "it is held"
        await press(pilot, "space")
        while not app.session.feed.is_over:  # type: ignore[attr-defined]
            app.tick()
        settle(app)
        assert clock(app) == (6, 24)
