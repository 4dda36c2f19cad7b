"""Commands go to the run that was asked about, or to none."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.events import Paste

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.protocol.client.items import Reset
from tests.overwatch_tui.harness import events, in_loop, session
from tests.overwatch_tui.test_app import LARGE, app_of, feed_of, press
from tests.overwatch_tui.test_published import with_commands


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def commands_of(app: OverwatchApp) -> list[str]:
    """What was sent, without what the terminal asks for itself."""
    return [method for _, method, _ in feed_of(app).requests if method not in ("history", "status")]


def follow_another(app: OverwatchApp) -> None:
    """The run has ended, and the next one is followed, as a terminal without a name does."""
    feed = feed_of(app)
    feed.run_id, feed.boot, feed.link["name"] = "other000", "b9", "other"
    feed.items = [Reset("run other, boot b9"), *events()[:50]]
    app.tick()


def lose_link(app: OverwatchApp) -> None:
    """The daemon does not answer any more."""
    feed_of(app).link["state"] = "lost"
    app.tick()


ASKED = {
    "key": (("X",), ("y",), "pause"),
    "name": (("ctrl+x",), ("digits-7f3a", "enter"), "stop"),
    "line": (("colon", "pause"), ("enter",), "pause"),
    "question": (("colon", "clients"), ("enter",), "clients"),
    "line and name": (("colon", "stop", "enter"), ("digits-7f3a", "enter"), "stop"),
}
"""Per way to send something: what is typed before the run changes, and after it; the method."""
CHANGES = {
    "another run": (follow_another, "not sent, another run is followed now: other"),
    "lost": (lose_link, "not sent, no daemon is connected (LOST)"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ASKED)
@in_loop
async def test_what_was_asked_of_a_run_reaches_no_other(way: str, change: str) -> None:
    before, after, method = ASKED[way]
    happen, said = CHANGES[change]
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=LARGE) as pilot:

        async def enter(words: tuple[str, ...]) -> None:
            for word in words:
                if isinstance(app.screen, InputLine) and word != "enter":
                    app.screen.post_message(Paste(word))
                    await pilot.pause()
                else:
                    await press(pilot, word)

        await enter(before)
        assert len(app.screen_stack) == 2
        happen(app)
        await enter(after)
        assert len(app.screen_stack) == 1
        assert commands_of(app) == []
        assert app.session.view.message == f"{method}: {said}"
        if change == "lost":
            feed_of(app).link["state"] = "live"
            app.tick()
            await enter((*before, *after))
            assert commands_of(app) == [method], "of the same run it is sent"


@in_loop
async def test_loop_of_another_run_is_not_called() -> None:
    app = with_commands()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "colon", *"lr 5")
        follow_another(app)
        await press(pilot, "enter")
        assert len(app.screen_stack) == 1
        assert commands_of(app) == []
        assert app.session.view.message == "lr: not sent, another run is followed now: other"


@in_loop
async def test_loop_that_nobody_reaches_is_not_called() -> None:
    app = with_commands()
    lose_link(app)
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "colon", *"lr 5", "enter")
        assert len(app.screen_stack) == 1
        assert app.session.view.message == "lr: not sent, no daemon is connected (LOST)"
