"""The terminal on a published run: every key, and the table of metrics under it."""

from __future__ import annotations

import pytest

from overwatch_tui import keys
from overwatch_tui.app import OverwatchApp
from overwatch_tui.panels import PANELS
from overwatch_tui.render.bars import key_line
from overwatch_tui.render.lines import plain
from overwatch_tui.screens.line_widget import LinePanel
from protocol.codec.json_lines import decode_line
from protocol.errors import EsperError
from protocol.messages import events as ev

from . import journal
from .harness import ListFeed, in_loop, panel_inputs, session


def app() -> OverwatchApp:
    run = journal.Run()
    run.emit(ev.RunStarted(**journal.PUBLISHED))
    run.emit(ev.RunStateChanged(state="TRAINING"))
    run.emit(ev.Scalars(step=7, values={f"group/m{i:02d}": float(i) for i in range(60)}))
    return OverwatchApp(session(decode_line(line) for line in run.lines))


def shown(made: OverwatchApp) -> str:
    panels = [p for p in made.screen_stack[0].query(LinePanel) if p.display]
    return "\n".join(plain(line) for panel in panels for line in panel.lines)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
@in_loop
async def test_moves_scroll_the_metrics(size: tuple[int, int]) -> None:
    made = app()
    async with made.run_test(size=size) as pilot:
        await pilot.pause()
        assert "m00" in shown(made)
        assert "no seed" not in shown(made)
        await pilot.press("G")
        assert "m59" in shown(made)
        await pilot.press("g")
        assert "m00" in shown(made)


def test_footer_offers_only_what_the_run_has() -> None:
    made = app().session
    feed = made.feed
    assert isinstance(feed, ListFeed)

    def footer() -> str:
        return plain(key_line(panel_inputs(made.state), 120))

    made.tick()
    assert [method for _, method, _ in feed.requests] == ["status"]
    feed.answer({"commands": {"stop": {}, "pause": {}, "resume": {}}})
    made.tick()
    assert " X pause " in footer()
    assert not any(word in footer() for word in ("escalate", "profile", "checkpoint"))
    assert len(made.state.commands) == 0
    assert [method for _, method, _ in feed.requests] == ["status"], "it asks again after some time only"


def test_waiting_for_a_round_of_a_published_run_is_refused() -> None:
    with pytest.raises(EsperError, match="has no rounds: leave out --after-round"):
        app().session.wait(after_round=1)


@in_loop
async def test_keys_of_trainings_are_refused_in_words() -> None:
    made = app()
    async with made.run_test(size=(120, 40)) as pilot:
        await pilot.press("T")
        assert made.session.view.message == "a published run does not have the command telemetry.escalate"


@pytest.mark.slow
@in_loop
async def test_no_key_fails_on_a_published_run() -> None:
    leaving = {"q", "ctrl+c", "ctrl+z", "f8"}
    names = [name for key in keys.KEYS for name in key.keys.split(",") if name and name not in leaving]
    made = app()
    async with made.run_test(size=(120, 40)) as pilot:
        for name in [*(panel.key for panel in PANELS.views), "1", *names]:
            await pilot.press(name, "escape")
        assert made.is_running
