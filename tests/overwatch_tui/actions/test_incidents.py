"""`n` opens guides, `a` and `m` act on the incident that the cursor is on, `U` undoes its suspect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.filters import parse_filter
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.box import ConfirmScreen
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from tests.overwatch_tui.harness import events, in_loop, session
from tests.overwatch_tui.test_app import LARGE, SMALL, app_of, do, feed_of, panels, press, shown

WORST, SECOND, THIRD = "b1-6", "b1-4", "b1-2"
"""The policy is not finite, the loss of env 13 likewise, env 7 explodes."""


def record_of(app: OverwatchApp, key: str) -> IncidentRecord:
    found = app.session.state.incidents.get(key)
    assert found is not None
    return found


def under_cursor(app: OverwatchApp) -> str:
    """The row of the list that stands out."""
    (panel,) = panels(app, "box-incidents")
    cursor = app.session.view.glyphs.cursor
    return next(text for line in panel.lines if cursor in (text := plain(line)))


def muted(app: OverwatchApp) -> list[str]:
    state = app.session.state
    return [r.key for r in state.incidents.ordered() if r.is_muted(app.session.feed.now())]


def filter_incidents(app: OverwatchApp, text: str) -> None:
    fields = PANELS["incidents"].fields(app.session.panel_inputs())
    chosen = parse_filter(text, fields)
    assert chosen is not None
    app.session.view.filters["incidents"] = chosen
    app.paint()


@pytest.mark.parametrize("keys", [("2",), (), ("tab",)], ids=["alone", "main", "focus"])
@in_loop
async def test_second_mute_ends_the_first(keys: tuple[str, ...]) -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, *keys)
        for expected in ([WORST], [], [WORST]):
            await do(pilot, "mute")
            assert muted(app) == expected
            assert "not finite" in under_cursor(app)


@in_loop
async def test_muted_row_under_the_cursor_is_acknowledged() -> None:
    app = app_of()
    state = app.session.state
    async with app.run_test(size=LARGE) as pilot:
        state.incidents.silence(WORST, app.session.feed.now() + 10**9)
        await press(pilot, "2", "a")
        assert record_of(app, WORST).is_acked
        assert not record_of(app, SECOND).is_acked
        await press(pilot, "a")
        assert record_of(app, SECOND).is_acked, "the next one is under the cursor now"


@in_loop
async def test_only_a_row_that_the_filter_shows_is_acknowledged() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2")
        filter_incidents(app, "env13")
        assert "loss not finite" in under_cursor(app)
        assert "loss not finite: env13" in shown(app, "box-strip")
        await press(pilot, "a")
        assert app.session.view.message.startswith("acknowledged loss not finite")
        assert not record_of(app, WORST).is_acked
        filter_incidents(app, "zzzz")
        await press(pilot, "a")
        assert app.session.view.message == "nothing to acknowledge"
        await do(pilot, "mute")
        assert app.session.view.message == "nothing to mute"
        await press(pilot, "escape", "1", "a")
        assert record_of(app, WORST).is_acked, "elsewhere it is the worst that waits"


@in_loop
async def test_frozen_list_gives_what_it_shows() -> None:
    app = app_of()
    state = app.session.state
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2", "space")
        state.incidents.ack(WORST, app.session.feed.now())
        assert "not finite" in under_cursor(app)
        await press(pilot, "a")
        assert app.session.view.message == "nothing to acknowledge", "somebody else has done so meanwhile"
        assert not record_of(app, SECOND).is_acked


@in_loop
async def test_main_screen_marks_the_row_that_is_acted_on() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        app.session.state.incidents.silence(WORST, app.session.feed.now() + 10**9)
        app.paint()
        assert "loss not finite" in under_cursor(app)
        await press(pilot, "a")
        assert app.session.view.message.startswith("acknowledged loss not finite")


@in_loop
async def test_n_opens_the_guide_of_each_in_turn() -> None:
    app = app_of()
    view = app.session.view
    async with app.run_test(size=SMALL) as pilot:
        for key, expected, said in (
            ("n", WORST, "not finite"),
            ("n", SECOND, "loss not finite"),
            ("n", THIRD, "exploding gradients"),
            ("n", WORST, "not finite"),
            ("previous_incident", THIRD, "exploding gradients"),
        ):
            await (press if key == "n" else do)(pilot, key)
            assert (view.name, view.detail) == ("problems", True)
            assert view.selected["incidents"] == expected
            lines = shown(app, "box-incidents").splitlines()
            assert said in lines[0]
            assert any(line.split()[:1] == ["try"] for line in lines)
        assert view.env == 7
        await press(pilot, "1", "n")
        assert view.selected["incidents"] == THIRD, "the guide that was open is the first again"


@in_loop
async def test_next_incident_is_one_that_the_filter_shows() -> None:
    app = app_of()
    view = app.session.view
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2")
        filter_incidents(app, "env")
        for key, expected in (("n", SECOND), ("n", THIRD), ("n", SECOND), ("previous_incident", THIRD)):
            await (press if key == "n" else do)(pilot, key)
            assert view.selected["incidents"] == expected
        filter_incidents(app, "zzzz")
        await press(pilot, "n")
        assert view.message == "nothing in this list waits"
        assert view.selected["incidents"] == THIRD


@in_loop
async def test_next_incident_of_a_frozen_list_is_in_it() -> None:
    app = app_of()
    state = app.session.state
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2", "space")
        state.incidents.ack(WORST, app.session.feed.now())
        state.incidents.fold(replace(record_of(app, WORST).data, id="b1-7"))
        await press(pilot, "n")
        assert app.session.view.selected["incidents"] == SECOND


@in_loop
async def test_undo_is_sent_after_the_question_is_confirmed() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "n")
        assert "U undo" in shown(app, "box-strip")
        await press(pilot, "U")
        assert isinstance(app.screen, ConfirmScreen)
        (panel,) = app.screen.query(LinePanel)
        asked = " ".join(" ".join(plain(line).strip("│ ") for line in panel.lines).split())
        assert "Undo ppo.learning_rate 0.001 -> 0.01 by esper-tui, uid 1000?" in asked
        assert "sends param.set key=ppo.learning_rate value=0.001" in asked
        assert sent(app) == []
        await press(pilot, "y")
        assert sent(app) == [("param.set", {"key": "ppo.learning_rate", "value": 0.001})]


@pytest.mark.parametrize(
    ("key", "read_only", "said"),
    [(SECOND, False, "no change is known"), (WORST, True, "this terminal sends no commands")],
)
@in_loop
async def test_what_cannot_be_undone_is_said(key: str, read_only: bool, said: str) -> None:
    app = app_of(session(events(), ViewState(read_only=read_only)))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "2")
        app.session.view.select("incidents", key)
        app.paint()
        assert "U undo" not in shown(app, "box-strip")
        await press(pilot, "U")
        assert said in app.session.view.message
        assert len(app.screen_stack) == 1
        assert sent(app) == []


def sent(app: OverwatchApp) -> list[tuple[str, dict[str, Any]]]:
    return [(method, params) for _, method, params in feed_of(app).requests if method != "status"]
