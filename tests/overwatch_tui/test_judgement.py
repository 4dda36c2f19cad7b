"""One judge: the top line, the rows, `n` and the bell say the same of what is wrong, and of how old it is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES
from esper_overwatch.protocol.messages.events import Context, spec_of
from esper_overwatch.protocol.messages.vocabulary import Severity

from . import journal
from .harness import VIEWS, draw, events, folded, in_loop, panel_inputs, session, snapshot_of, state
from .model.test_incidents import incident
from .test_app import LARGE, SMALL, app_of, feed_of, press, shown

OK = "ok no incident is open"


def _event(data: Any, *, env: int | None = None, after: int = 0, seq: int = 10**6) -> Event:
    """An event after a quiet round."""
    spec = spec_of(type(data))
    ts = events(rounds=1)[-1].ts + after
    return Event(
        seq=seq, ts=ts, type=spec.type, stream=spec.stream, tv=1, ctx=Context(env=env, round=1), data=data
    )


def _exploding(env: int, severity: Severity = "critical", **fields: Any) -> list[Event]:
    """A raised signal of an env, and the incident that the daemon makes of it."""
    source = f"env{env:02d}"
    raised = ev.Anomaly(kind="gradient_exploding", source=source, severity=severity, active=True)
    told = incident(f"b1-{env}", severity, source=source, scope=source, envs=[env], **fields)
    return [_event(raised, env=env, seq=10**6 + 2 * env), _event(told, seq=10**6 + 2 * env + 1)]


def _quiet(*more: Event) -> State:
    return folded([*events(rounds=1), *more])


def _update(**fields: Any) -> Event:
    last = next(e.data for e in reversed(events(rounds=1)) if isinstance(e.data, ev.PPOUpdate))
    return _event(replace(last, **fields))


def test_quiet_run_is_ok() -> None:
    assert OK in draw(panel_inputs(_quiet()), *SMALL)


@in_loop
async def test_an_incident_is_told_everywhere_until_it_is_over() -> None:
    app = app_of(session([*events(rounds=1), *_exploding(3)]))
    async with app.run_test(size=SMALL) as pilot:
        top, rows = shown(app, "box-strip"), shown(app, "box-envs")
        assert " ok " not in top
        assert "CRIT  exploding gradients: env03" in top
        assert "03 critical" in rows.splitlines()[1], "first, and selected"
        await press(pilot, "n")
        assert app.session.view.env == 3
        assert "exploding gradients" in shown(app, "box-incidents")
        await press(pilot, "1", "a")
        assert "CRIT" in shown(app, "box-strip"), "acknowledged, and still open"
        calm = ev.Anomaly(kind="gradient_exploding", source="env03", severity="critical", active=False)
        over = incident("b1-3", "critical", change="over", over=feed_of(app).now(), envs=[3])
        feed_of(app).items = [_event(calm, env=3, seq=10**7), _event(over, seq=10**7 + 1)]
        app.tick()
        app.paint()
        assert OK in shown(app, "box-strip")
        assert "critical" not in shown(app, "box-envs")


@in_loop
async def test_a_worse_incident_takes_the_first_line() -> None:
    app = app_of(session([*events(rounds=1), *_exploding(3, "warning")]))
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "n", "1")
        assert "WARN  exploding gradients: env03" in shown(app, "box-strip")
        feed_of(app).items = [*_exploding(9)]
        app.tick()
        app.paint()
        assert "CRIT  exploding gradients: env09" in shown(app, "box-strip")
        await press(pilot, "a")
        assert app.session.view.message.startswith("acknowledged exploding gradients")
        assert "WARN  exploding gradients: env03" in shown(app, "box-strip")


def test_limits_sent_with_an_update_colour_it_and_raise_nothing() -> None:
    view = ViewState()
    view.show_view("policy")
    update = _update(clip_fraction=0.28, limits={"clip_fraction": [0.25, 0.3], "approx_kl": [0.03]})
    lines = draw(panel_inputs(_quiet(update), view), *SMALL).splitlines()
    assert OK in lines[1]
    assert "WARN 0.25/0.3" in next(line for line in lines[3:] if "clip" in line)
    assert "ok   0.03" in next(line for line in lines[3:] if "KL" in line)
    assert "ok" not in next(line for line in lines[3:] if "entropy" in line), "not judged yet"


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_late_viewer_sees_what_a_live_one_does(size: tuple[int, int]) -> None:
    live, late = (folded(found).incidents for found in (events(), snapshot_of(events())))
    assert repr(live.ordered()) == repr(late.ordered())
    lines = []
    for incidents in (live, late):
        view = ViewState()
        view.show_view("problems")
        known = replace(state(), incidents=incidents)
        lines.append(draw(panel_inputs(known, view), *size))
    assert lines[0] == lines[1]


def test_another_boot_begins_without_open_incidents() -> None:
    run = journal.Run(boot="b2", rounds=0, begin=events()[-1].ts)
    again = [replace(decode_line(line), seq=10**6 + i) for i, line in enumerate(run.make())]
    known = folded([*events(), *again])
    assert known.incidents.open() == []
    assert len(known.anomalies) == 0
    assert [record.key for record in known.incidents.ordered()] == ["b1-1"], "what was over stays"


@pytest.mark.parametrize("link", ["stale", "lost", "ended", "connecting"])
def test_what_is_not_fresh_has_no_colour(link: str) -> None:
    for name in VIEWS:
        view = ViewState()
        PANELS.show(view, name)
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


def test_open_incidents_are_counted_when_the_link_is_lost() -> None:
    text = draw(panel_inputs(state(), state="lost", age_seconds=16.0), *SMALL)
    assert "3 unacked before" in text.splitlines()[1]


@in_loop
async def test_new_critical_incident_is_told_once() -> None:
    app = app_of(session(events(rounds=1)))
    told: list[str] = []
    async with app.run_test(size=SMALL):
        app.alert = lambda title, records: told.extend(  # type: ignore[method-assign]
            f"{title}: {record.data.title} {record.data.scope}" for record in records
        )
        for more in ([], _exploding(3), []):
            feed_of(app).items = list(more)
            app.session.needs_paint = True
            app.tick()
            app.session.needs_paint = True
            app.tick()
    assert told == ["esper digits-7f3a: exploding gradients env03"]


@in_loop
async def test_incident_right_after_the_first_frame_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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
        feed_of(app).items = [*_exploding(3)]
        app.session.needs_paint = True
        OverwatchApp.tick(app)
    assert told == ["esper digits-7f3a"]


@pytest.mark.parametrize("how", ["muted", "acknowledged", "recorded"])
@in_loop
async def test_nothing_rings_for_what_is_seen_or_past(how: str) -> None:
    app = app_of(session(events(rounds=1), is_replay=how == "recorded"))
    found = _exploding(3)
    told: list[str] = []
    async with app.run_test(size=SMALL):
        app.alert = lambda title, records: told.append(title)  # type: ignore[method-assign]
        app.session.needs_paint = True
        app.tick()
        incidents = app.session.state.incidents
        if how == "muted":
            incidents.silence("b1-3", found[0].ts + 10**9)
        elif how == "acknowledged":
            seen = ev.AnomalyAcknowledged(
                incident="b1-3", source="env03", kind="x", since=1, severity="critical", by="a"
            )
            incidents.fold_acknowledged(seen, found[0].ts)
        feed_of(app).items = [*found]
        app.session.needs_paint = True
        app.tick()
        assert app.session.state.incidents.get("b1-3") is not None
    assert told == []


@in_loop
async def test_worst_env_is_selected_until_one_is_chosen() -> None:
    app = app_of(session(events(rounds=1)))
    async with app.run_test(size=SMALL) as pilot:
        assert app.session.view.env == 0
        feed_of(app).items = [*_exploding(9)]
        app.tick()
        app.paint()
        assert app.session.view.env == 9
        await press(pilot, "j")
        chosen = app.session.view.env
        feed_of(app).items = [*_exploding(4)]
        app.tick()
        app.paint()
        assert app.session.view.env == chosen
        await press(pilot, "escape")
        assert app.session.view.env != chosen, "Esc follows the worst again"


def test_flagged_env_is_the_first_of_many_cells() -> None:
    known = folded([*events(64, 1), *_exploding(5)])
    text = draw(panel_inputs(known, ViewState(sort="accuracy")), *SMALL)
    assert re.search(r"\n C[▁-█]", text)


def test_health_drift_is_charted_as_such() -> None:
    told = incident("b1-9", "warning", source="policy", kind="health_drift", title="gradient health falls")
    view = ViewState()
    view.show_view("problems")
    view.select("incidents", "b1-9")
    view.detail = True
    text = draw(panel_inputs(folded([*events(), _event(told)]), view), 120, 40)
    assert "policy health drift" in text
    assert "policy norm drift" not in text


@in_loop
async def test_configuration_is_whole_at_80_columns_and_scrolls() -> None:
    config = {"host": {"learning_rate": 0.05}, "seeds": {f"option_number_{i}": 1.5 for i in range(60)}}
    made = session(events(rounds=1))
    assert made.state.run is not None
    made.state.run = replace(made.state.run, config=config)
    app = app_of(made)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "5", "enter")
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
        assert app.session.view.name == "policy"


@in_loop
async def test_opened_incident_says_what_to_try() -> None:
    app = app_of(session([*events(rounds=1), *_exploding(3)]))
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "2")
        await press(pilot, "n")
        guide = ANOMALY_GUIDES["gradient_exploding"]
        text = shown(app, "box-incidents")
        assert guide.meaning[:60] in text
        assert guide.causes[0] in text, "nothing is suspected"
        assert f"1. {guide.steps[0]}"[:60] in text
