"""One judge: the top line, the rows, `n` and the bell say the same of what is wrong, and of how old it is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.anomalies import ROLLBACK_SHOWN_MICROSECONDS
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.panels import PANELS, VIEWS
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context, spec_of

from .harness import ListFeed, draw, events, folded, in_loop, panel_inputs, session, state
from .test_app import LARGE, SMALL, app_of, feed_of, press, shown

OK = "ok no anomaly is active"


def _event(data: Any, *, env: int | None = None, after: int = 0, seq: int = 10**6) -> Event:
    """An event after a quiet round."""
    spec = spec_of(type(data))
    ts = events(rounds=1)[-1].ts + after
    return Event(
        seq=seq, ts=ts, type=spec.type, stream=spec.stream, tv=1, ctx=Context(env=env, round=1), data=data
    )


def _rollback(env: int) -> Event:
    data = ev.GovernorRollback(reason="nan", loss=float("nan"), restored_epoch=3, penalty=1.0)
    return _event(data, env=env)


def _quiet(*more: Event) -> State:
    return folded([*events(rounds=1), *more])


def _update(**fields: Any) -> Event:
    last = next(e.data for e in reversed(events(rounds=1)) if isinstance(e.data, ev.PPOUpdate))
    return _event(replace(last, **fields))


def test_quiet_run_is_ok() -> None:
    assert OK in draw(panel_inputs(_quiet()), *SMALL)


@in_loop
async def test_rollback_is_told_everywhere_until_acknowledged() -> None:
    app = app_of(session([*events(rounds=1), _rollback(3)]))
    async with app.run_test(size=SMALL) as pilot:
        top, rows = shown(app, "box-strip"), shown(app, "box-envs")
        assert " ok " not in top
        assert "1 CRIT" in top
        assert "env03 rollback" in top
        assert "03 ROLL" in rows.splitlines()[1], "first, and selected"
        await press(pilot, "n")
        assert app.session.view.env == 3
        await press(pilot, "2")
        assert "rollback" in shown(app, "box-anomalies")
        feed_of(app).clock = feed_of(app).now() + ROLLBACK_SHOWN_MICROSECONDS
        app.tick()
        await press(pilot, "1")
        assert "ROLL" not in shown(app, "box-envs")
        assert "1 unacked" in shown(app, "box-strip"), "over, and still to be seen"
        await press(pilot, "a")
        assert OK in shown(app, "box-strip")


def test_limit_of_a_panel_counts_in_the_top_line() -> None:
    view = ViewState()
    view.show_view("policy")
    text = draw(panel_inputs(_quiet(_update(clip_fraction=0.28)), view), *SMALL)
    assert OK not in text
    assert "1 WARN" in text.splitlines()[1]
    assert "clip_fraction_limit" in text.splitlines()[1]
    assert "WARN" in next(line for line in text.splitlines()[3:] if "clip" in line)
    again = _quiet(_update(clip_fraction=0.28), replace(_update(clip_fraction=0.1), seq=10**6 + 1))
    assert OK in draw(panel_inputs(again, view), *SMALL)


def test_limit_that_no_longer_holds_is_forgotten() -> None:
    low = _update(explained_variance=-1.5, return_std=0.5)
    assert [r.kind for r in _quiet(low).anomalies.ordered()] == ["explained_variance_limit"]
    flat = replace(_update(explained_variance=None, return_std=0.0), seq=10**6 + 1)
    assert _quiet(low, flat).policy_limit("explained_variance") is None
    assert _quiet(low, flat).anomalies.ordered() == []


def test_check_of_the_daemon_replaces_the_limit() -> None:
    raised = ev.Anomaly(kind="kl_spike", source="policy", severity="critical", active=True, value=9.0)
    known = _quiet(_update(approx_kl=9.0), _event(raised, after=1))
    assert [r.kind for r in known.anomalies.open_records(known.ts)] == ["kl_spike"]


@pytest.mark.parametrize("link", ["stale", "lost", "ended", "connecting"])
def test_what_is_not_fresh_has_no_colour(link: str) -> None:
    for name in VIEWS:
        view = ViewState()
        view.show_view(name)
        inputs = panel_inputs(state(), view, state=link, age_seconds=16.0)
        layout = compose_screen(PANELS, inputs, inputs, 120, 40)
        bars = {"header", "strip", "views", "status", "keys"}
        styles = {
            style for box in layout.boxes if box.name not in bars for _, style in _spans(layout, box.name)
        }
        assert styles <= {"dim", "dim select", ""}, name
        assert "ok" not in {style for _, style in _spans(layout, "header")}, "no green TRAINING"
        assert OK not in layout.text(120, 40)


def _spans(layout: Any, box: str) -> list[tuple[str, str]]:
    return [span for line in layout.lines[box] for span in line]


def test_open_anomalies_are_counted_when_the_link_is_lost() -> None:
    text = draw(panel_inputs(state(), state="lost", age_seconds=16.0), *SMALL)
    assert "6 unacked before" in text.splitlines()[1]


def test_trainer_is_silent_by_the_measure_of_its_epochs() -> None:
    known = _quiet()
    assert known.epoch is not None
    known.epoch = replace(known.epoch, seconds=26.0)
    assert OK in draw(panel_inputs(known, trainer_age_seconds=60.0), *SMALL)
    text = draw(panel_inputs(known, trainer_age_seconds=90.0), *SMALL)
    assert OK not in text
    assert "trainer silent" in text


@in_loop
async def test_new_critical_anomaly_is_told_once() -> None:
    app = app_of(session(events(rounds=1)))
    told: list[str] = []
    async with app.run_test(size=SMALL):
        app.alert = lambda title, records: told.extend(  # type: ignore[method-assign]
            f"{title}: {record.source} {record.kind}" for record in records
        )
        for more in ([], [_rollback(3)], []):
            feed_of(app).items = list(more)
            app.session.needs_paint = True
            app.tick()
            app.session.needs_paint = True
            app.tick()
    assert told == ["esper digits-7f3a: env03 rollback"]


@in_loop
async def test_anomaly_right_after_the_first_frame_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = session(events(rounds=1))
    watched.tick()
    app = app_of(watched)
    told: list[str] = []
    monkeypatch.setattr(
        app, "tick", lambda: None
    )  # its first comes after the first frame, which a resize paints
    async with app.run_test(size=SMALL) as pilot:
        await pilot.pause()
        monkeypatch.setattr(app, "alert", lambda title, records: told.append(title))
        feed_of(app).items = [_rollback(3)]
        app.session.needs_paint = True
        OverwatchApp.tick(app)
    assert told == ["esper digits-7f3a"]


@pytest.mark.parametrize("how", ["muted", "acknowledged", "recorded"])
@in_loop
async def test_nothing_rings_for_what_is_seen_or_past(how: str) -> None:
    app = app_of(session(events(rounds=1), is_replay=how == "recorded"))
    key = ("env03", "rollback")
    found = _rollback(3)
    told: list[str] = []
    async with app.run_test(size=SMALL):
        app.alert = lambda title, records: told.append(title)  # type: ignore[method-assign]
        app.session.needs_paint = True
        app.tick()
        anomalies = app.session.state.anomalies
        if how == "muted":
            anomalies.silence(key, found.ts + 10**9)
        elif how == "acknowledged":
            anomalies.fold_acknowledged(
                ev.AnomalyAcknowledged(
                    source=key[0], kind=key[1], since=found.ts, severity="critical", by="a", reason=""
                ),
                found.ts,
            )
        feed_of(app).items = [found]
        app.session.needs_paint = True
        app.tick()
        assert app.session.state.anomalies.get(key) is not None
    assert told == []


@in_loop
async def test_worst_env_is_selected_until_one_is_chosen() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        assert app.session.view.env == 0
        feed_of(app).items = [_rollback(9)]
        app.tick()
        app.paint()
        assert app.session.view.env == 9
        await press(pilot, "j")
        chosen = app.session.view.env
        feed_of(app).items = [replace(_rollback(4), seq=10**6 + 1)]
        app.tick()
        app.paint()
        assert app.session.view.env == chosen
        await press(pilot, "escape")
        assert app.session.view.env != chosen, "Esc follows the worst again"


def test_grid_keeps_each_env_at_its_place() -> None:
    known = folded([*events(64, 1), _rollback(5)])
    text = draw(panel_inputs(known, ViewState(sort="accuracy")), *SMALL)
    assert "    0 .....R...." in text


def test_health_drift_is_charted_as_such() -> None:
    raised = ev.Anomaly(kind="health_drift", source="policy", severity="warning", active=True, value=0.6)
    view = ViewState()
    view.show_view("anomalies")
    view.select("anomalies", ("policy", "health_drift"))
    view.detail = True
    text = draw(panel_inputs(folded([*events(), _event(raised)]), view), 120, 40)
    assert "policy health drift" in text
    assert "policy norm drift" not in text


def test_peak_outlives_a_resynchronisation() -> None:
    made = session(events(rounds=1))
    assert isinstance(made.feed, ListFeed)
    fields: dict[str, Any] = {
        "kind": "slow_update",
        "source": "system",
        "severity": "warning",
        "active": True,
    }
    raised = [ev.Anomaly(**fields, value=value, threshold=3.0, since=7) for value in (4.0, 9.0, 5.0)]
    made.feed.items = [*(_event(data) for data in raised), Reset("behind"), _event(raised[-1])]
    made.tick()
    record = made.state.anomalies.get(("system", "slow_update"))
    assert record is not None
    assert (record.value, record.peak) == (5.0, 9.0)


@in_loop
async def test_configuration_is_whole_at_80_columns_and_scrolls() -> None:
    config = {"host": {"learning_rate": 0.05}, "seeds": {f"option_number_{i}": 1.5 for i in range(60)}}
    made = session(events(rounds=1))
    assert made.state.run is not None
    made.state.run = replace(made.state.run, config=config)
    app = app_of(made)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "8", "enter")
        assert re.search(r"host\.learning_rate +0\.05 *$", shown(app, "box-system"), re.MULTILINE) is not None
        await press(pilot, "G")
        assert re.search(r"seeds\.option_number_59 +1\.5", shown(app, "box-system")) is not None


@in_loop
async def test_too_small_is_said_in_as_few_columns() -> None:
    app = app_of()
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        assert "needs 80x24 (now 60x20)" in shown(app)
        assert "--once" not in shown(app), "left out, not cut"


@in_loop
async def test_key_without_meaning_says_so() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "z")
        await pilot.pause()
        assert "no such key: z" in shown(app, "box-status")
        await press(pilot, "3")
        assert app.session.view.name == "drift"


@in_loop
async def test_opened_anomaly_says_what_to_try() -> None:
    app = app_of(session([*events(rounds=1), _rollback(3)]))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "2")
        text = shown(app, "box-anomalies")
        assert "raised by hour, 24h" in text
        assert re.search(r"critical +\.{23}█ +\d+  .*rollback 1", text)
        await press(pilot, "n", "enter")
        text = shown(app, "box-anomalies")
        assert re.search(r"means +The governor has put a host back", text)
        assert re.search(r"try +1\. once in a while: nothing", text)
        assert "usually" in text


@in_loop
async def test_other_limits_are_counted_and_tried_here() -> None:
    app = app_of(session(events()))
    app.session.view.show_view("anomalies")
    app.session.view.select("anomalies", ("env07", "norm_drift"))
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "W")
        line = app.screen
        assert isinstance(line, InputLine)
        said = re.compile(
            r"would have raised (\d+) warnings, (\d+) critical in .+ of (\d+) curves; .* (\d+), (\d+)\."
        )

        def preview() -> list[int]:
            text = "\n".join(plain(each) for each in line.query_one(LinePanel).lines)
            found = said.search(text)
            assert found is not None, text
            return [int(each) for each in found.groups()]

        new_warnings, new_criticals, curves, warnings, criticals = preview()
        assert (new_warnings, new_criticals) == (warnings, criticals), "those in force are offered"
        assert warnings + criticals > 0
        assert curves > 16
        await press(pilot, "ctrl+u", *"90 99")
        assert preview()[:2] == [0, 0]
        await press(pilot, "enter")
        assert app.session.view.message is not None
        assert "--set anomalies.norm_drift=90,99" in app.session.view.message
        assert app.session.state.severity("norm_drift", 5.0) is None
        feed_of(app).items = [Reset("again"), *events()[:50]]
        app.tick()
        app.paint()
        assert app.session.state.severity("norm_drift", 5.0) is None, "a snapshot does not end it"
        assert feed_of(app).requests == []


@pytest.mark.parametrize(
    ("view", "key", "said"),
    [
        ("envs", ("env07", "norm_drift"), "in view 2"),
        ("anomalies", ("env02", "stalled"), "no curve is kept that stalled"),
    ],
)
@in_loop
async def test_limits_without_a_curve_are_not_tried(view: str, key: tuple[str, str], said: str) -> None:
    app = app_of(session(events()))
    app.session.view.show_view(view)
    app.session.view.select("anomalies", key)
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "W")
        assert len(app.screen_stack) == 1
        assert said in str(app.session.view.message)
