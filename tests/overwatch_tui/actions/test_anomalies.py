"""`a` and `m` act on the anomaly that the cursor is on."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.anomalies import AnomalyRecord
from esper_overwatch.overwatch_tui.model.filters import parse_filter
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.lines import plain
from tests.overwatch_tui.harness import in_loop
from tests.overwatch_tui.test_app import LARGE, app_of, panels, press, shown

WORST, SECOND = ("env13", "loss_nonfinite"), ("env13", "rollback")


def record_of(app: OverwatchApp, key: tuple[str, str]) -> AnomalyRecord:
    found = app.session.state.anomalies.get(key)
    assert found is not None
    return found


def under_cursor(app: OverwatchApp) -> str:
    """The row of the list that stands out."""
    (panel,) = panels(app, "box-anomalies")
    cursor = app.session.view.glyphs.cursor
    return next(text for line in panel.lines if cursor in (text := plain(line)))


def muted(app: OverwatchApp) -> list[tuple[str, str]]:
    state = app.session.state
    return [r.key for r in state.anomalies.ordered() if r.is_muted(app.session.feed.now())]


def filter_anomalies(app: OverwatchApp, text: str) -> None:
    fields = PANELS["anomalies"].renderer.fields(app.session.panel_inputs())
    chosen = parse_filter(text, fields)
    assert chosen is not None
    app.session.view.filters["anomalies"] = chosen
    app.paint()


@pytest.mark.parametrize("keys", [("2",), (), ("tab",)], ids=["alone", "main", "focus"])
@in_loop
async def test_second_mute_ends_the_first(keys: tuple[str, ...]) -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, *keys)
        for expected in ([WORST], [], [WORST]):
            await press(pilot, "m")
            assert muted(app) == expected
            assert "nonfinite" in under_cursor(app)


@in_loop
async def test_muted_row_under_the_cursor_is_acknowledged() -> None:
    app = app_of()
    state = app.session.state
    async with app.run_test(size=LARGE) as pilot:
        state.anomalies.silence(WORST, app.session.feed.now() + 10**9)
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
        filter_anomalies(app, "policy.blueprint")
        assert "policy.blueprint" in under_cursor(app)
        assert "6 unacked │ policy.blueprint drift" in shown(app, "box-strip")
        await press(pilot, "a")
        assert app.session.view.message.startswith("acknowledged policy.blueprint norm_drift")
        assert not record_of(app, WORST).is_acked
        filter_anomalies(app, "zzzz")
        await press(pilot, "a")
        assert app.session.view.message == "nothing to acknowledge"
        await press(pilot, "m")
        assert app.session.view.message == "nothing to mute"
        await press(pilot, "escape", "1", "a")
        assert record_of(app, WORST).is_acked, "elsewhere it is the worst that waits"


@in_loop
async def test_frozen_list_gives_what_it_shows() -> None:
    app = app_of()
    state = app.session.state
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2", "space")
        state.anomalies.ack(WORST, app.session.feed.now())
        assert "nonfinite" in under_cursor(app)
        await press(pilot, "a")
        assert app.session.view.message == "nothing to acknowledge", "somebody else has done so meanwhile"
        assert not record_of(app, SECOND).is_acked


@in_loop
async def test_main_screen_marks_the_row_that_is_acted_on() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        app.session.state.anomalies.silence(WORST, app.session.feed.now() + 10**9)
        app.paint()
        assert "rollback" in under_cursor(app)
        await press(pilot, "a")
        assert app.session.view.message.startswith("acknowledged env13 rollback")


@in_loop
async def test_next_anomaly_is_one_that_the_filter_shows() -> None:
    app = app_of()
    view = app.session.view
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2")
        filter_anomalies(app, "norm_drift")
        listed = [(source, "norm_drift") for source in ("env07", "env05", "policy.blueprint")]
        for key, at in (("n", 0), ("n", 1), ("n", 2), ("n", 0), ("N", 2)):
            await press(pilot, key)
            assert view.selected["anomalies"] == listed[at]
            assert listed[at][0] in under_cursor(app)
        filter_anomalies(app, "zzzz")
        await press(pilot, "n")
        assert view.message == "nothing in this list waits"
        assert view.selected["anomalies"] == listed[2]
        await press(pilot, "1", "n")
        assert view.selected["anomalies"] == WORST, "elsewhere it goes over all"


@in_loop
async def test_next_anomaly_of_a_frozen_list_is_in_it() -> None:
    app = app_of()
    state = app.session.state
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2", "space")
        now = app.session.feed.now()
        state.anomalies.ack(WORST, now)
        state.anomalies.fold_rollback("later", ts=now, env=1)
        assert state.anomalies.open_records(now)[0].env == 1
        await press(pilot, "n")
        assert app.session.view.selected["anomalies"] == SECOND
        assert "rollback" in under_cursor(app)
