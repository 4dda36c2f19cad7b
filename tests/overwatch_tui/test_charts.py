"""Charts, driven key by key: what the screen says."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.chart_page import num_columns
from esper_overwatch.overwatch_tui.render.chart_view import MAX_PINS, ChartView
from esper_overwatch.overwatch_tui.render.signals import mark_of, siblings, signal_of
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.messages import events as ev

from .harness import draw, events, in_loop, panel_inputs, session, state
from .test_app import LARGE, SMALL, app_of, do, feed_of, press, shown
from .test_published import app as published_app

BRAILLE = re.compile("[\u2801-\u28ff]")


def page_of(*names: str, width: int = 120, height: int = 40, envs: int = 16, **chosen: object) -> str:
    """The page of charts as text."""
    view = ViewState()
    view.charts = ChartView(names=names, **chosen)  # type: ignore[arg-type]
    return draw(panel_inputs(state(envs), view), width, height)


@pytest.mark.parametrize(
    ("view", "keys", "words"),
    [
        ("envs", ["enter", "enter"], ["accuracy %", "return", "norm drift", "gradient norm"]),
        ("incidents", ["n", "n", "n", "enter"], ["env07 accuracy"]),
        ("drift", ["enter"], ["policy norm drift", "policy gradient norm", "policy health drift"]),
        ("policy", ["j", "enter"], ["entropy  0.77", "WARN 0.1"]),
        ("system", ["enter", "enter"], ["CPU %", "env-epochs per second"]),
    ],
)
@in_loop
async def test_enter_opens_the_charts_of_a_row(view: str, keys: list[str], words: list[str]) -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        PANELS.show(app.session.view, view)
        await press(pilot, *keys)
        text = shown(app, "box-pins")
        for word in words:
            assert word in text
        assert BRAILLE.search(text)
        await press(pilot, "escape")
        assert not shown(app, "box-pins")


@in_loop
async def test_a_metric_of_a_published_run_is_charted() -> None:
    app = published_app()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "j", "enter", "enter")
        await do(pilot, "pin")
        text = shown(app, "box-pins")
        assert " group/m00  0" in text
        PANELS.of(is_published=True).show(app.session.view, "pins")
        app.paint()
        assert "PINNED CHARTS" in shown(app, "box-pins")
        assert "group/m00" in shown(app, "box-pins")


@in_loop
async def test_an_open_chart_follows_the_selected_row() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "3", "enter")
        assert " KL " in shown(app, "box-pins")
        await press(pilot, "j", "j")
        assert "clip fraction" in shown(app, "box-pins")
        await press(pilot, "1")
        await do(pilot, "env 5")
        await press(pilot, "enter", "enter")
        assert "env05 accuracy" in shown(app, "box-pins")


@in_loop
async def test_the_cursor_tells_one_time_and_every_value() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "3", "enter", *["h"] * 21)
        charts = app.session.view.charts
        text = shown(app, "box-pins")
        assert charts.at is not None
        clock = re.search(r"\d\d:\d\d:\d\d, [\d.]+s ago", text)
        assert clock is not None
        at = charts.at
        await press(pilot, "l")
        assert charts.at > at
        at = charts.at
        await press(pilot, "right", "left")
        assert charts.at == at
        await press(pilot, "escape")
        assert charts.at is None
        assert charts.names, "Esc lets go of the cursor first"
        assert "0.0s ago" in shown(app, "box-pins")


def test_the_value_under_the_cursor_is_that_of_its_time() -> None:
    inputs = panel_inputs(state())
    history = inputs.history("accuracy/3")
    assert history is not None
    at = inputs.now - 20_000_000
    (bucket,) = history.buckets(at, 1_000_000, 1)
    assert bucket is not None
    found = re.search(r"env03 accuracy %  ([\d.]+)", page_of("accuracy/3", at=at))
    assert found is not None
    near = [b.mean for b in history.buckets(at + 2_000_000, 5_000_000, 5) if b is not None]
    assert 100 * min(near) <= float(found[1]) <= 100 * max(near)


@in_loop
async def test_at_the_edge_the_cursor_moves_the_charts() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "3", "enter")
        await do(pilot, "zoom_in", "zoom_in")
        assert "now" in shown(app, "box-pins")
        await do(pilot, *["inspect_far_left"] * 8)
        charts = app.session.view.charts
        assert charts.end is not None
        assert charts.end < app.session.feed.now()
        last = shown(app, "box-pins").rstrip().splitlines()[-1].split()
        assert [len(word) for word in last] == [8, 8], "both edges have a time"
        await do(pilot, *["inspect_far_right"] * 9)
        assert charts.end is None
        assert "now" in shown(app, "box-pins")


@in_loop
async def test_axis_smoothing_and_overlay_are_said_and_drawn() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "3", "enter")
        pictures = [shown(app, "box-pins")]
        for key, word in (("log_axis", "log axis"), ("smooth", "smoothed 0.6"), ("smooth", "smoothed 0.9")):
            await do(pilot, key)
            pictures.append(shown(app, "box-pins"))
            assert word in pictures[-1]
        await do(pilot, "smooth", "log_axis", "overlay")
        assert shown(app, "box-pins") != pictures[0]
        assert "nothing to lay it over" in shown(app, "box-pins"), "there is one policy"
        await do(pilot, "overlay")
        assert shown(app, "box-pins") == pictures[0]


@pytest.mark.slow
def test_an_overlay_draws_all_envs() -> None:
    alone = page_of("accuracy/7")
    every = page_of("accuracy/7", overlay="all")
    assert "over 16" in every
    assert sum(str(env) in every for env in range(16)) == 16, "each has its number"
    assert alone != every
    heads = page_of("entropy.slot", overlay="all")
    assert "over 8" in heads
    many = page_of("accuracy/7", overlay="all", envs=64, width=200, height=60)
    assert "over 64" in many


def test_limits_are_drawn_where_they_are_near() -> None:
    text = page_of("drift/env07")
    assert re.search(r"info ?[─]", text)
    assert "info 0.5" in text
    kl = page_of("ppo.approx_kl")
    assert "WARN 0.03" in kl, "the line of words tells also what is far off"
    assert "WARN─" not in kl


def test_a_chart_reads_in_ascii_and_without_data() -> None:
    view = ViewState(glyphs=ASCII)
    view.charts.names = ("accuracy/7", "drift/env07", "nowhere")
    text = draw(panel_inputs(state(), view), 80, 24)
    assert text.isascii()
    assert text.count("*") > 40
    assert "nowhere  not measured in this run" in text


@in_loop
async def test_pins_make_a_page_and_survive_a_restart() -> None:
    app = app_of()
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "3")
        assert "pins" not in shown(app, "box-views"), "no chart is pinned yet"
        await press(pilot, "3")
        await do(pilot, "pin")
        await press(pilot, "j")
        await do(pilot, "pin")
        await press(pilot, "1")
        await do(pilot, "env 7", "pin")
        PANELS.show(app.session.view, "pins")
        app.paint()
        text = shown(app, "box-pins")
        for word in ("PINNED CHARTS", " KL ", "entropy", "env07 accuracy"):
            assert word in text
        await press(pilot, "j", "enter")
        assert "KL" not in shown(app, "box-pins"), "Enter opens the selected one alone"
        await press(pilot, "escape")
        await do(pilot, "pin")
        assert app.session.view.charts.pins == ["ppo.approx_kl", "accuracy/7"]
    again = app_of()
    async with again.run_test(size=SMALL) as pilot:
        PANELS.show(again.session.view, "pins")
        again.paint()
        assert "env07 accuracy" in shown(again, "box-pins")
        assert " KL " in shown(again, "box-pins")


@in_loop
async def test_a_seventh_pin_is_refused() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "3")
        for _ in range(MAX_PINS):
            await do(pilot, "pin")
            await press(pilot, "j")
        await do(pilot, "pin")
        assert len(app.session.view.charts.pins) == MAX_PINS
        assert "not pinned" in shown(app)


@in_loop
async def test_a_new_epoch_repaints_little_of_a_chart() -> None:
    """At an hour a column spans more than a minute: an epoch changes the last one and the ages."""
    app = app_of(session(events()))
    async with app.run_test(size=LARGE) as pilot:
        app.session.view.window = 4
        await press(pilot, "1", "enter", "enter")
        await pilot.pause()
        before = shown(app, "box-pins").splitlines()
        epoch = next(e for e in reversed(events()) if isinstance(e.data, ev.EpochFinished))
        feed_of(app).items = [replace(epoch, ts=epoch.ts + 2_000_000, seq=epoch.seq + 1)]
        app.tick()
        app.paint()
        after = shown(app, "box-pins").splitlines()
        words = [y for y, line in enumerate(after) if " ago" in line]
        for y, (old, new) in enumerate(zip(before, after, strict=True)):
            assert y in words or old == new
        assert before != after


@pytest.mark.parametrize(("width", "height"), [(80, 18), (120, 34), (200, 54)])
@pytest.mark.parametrize("count", range(1, MAX_PINS + 1))
def test_a_page_of_charts_has_no_empty_half(width: int, height: int, count: int) -> None:
    names = ("accuracy/7", "return/7", "drift/env07", "norm/env07", "accuracy/2", "return/2")[:count]
    rows = page_of(*names, width=width, height=height + 6).splitlines()[4:-2]
    assert len(rows) == height
    assert sum(not row.strip() for row in rows) == 0
    assert sum(" ago" in row for row in rows) == -(-count // num_columns(count, width, height))


def test_every_curve_has_a_name_for_people() -> None:
    known = state()
    labels = {name: signal_of(known, name).label for name in known.curves.histories}
    for name, label in labels.items():
        assert label, name
        assert "/" not in label, name
    assert len(set(labels.values())) == len(labels)


def test_siblings_are_the_same_number_elsewhere() -> None:
    names = [f"accuracy/{env}" for env in range(12)] + ["accuracy.mean", "entropy.op", "entropy.slot"]
    names += ["drift/env07", "drift/env07.r0c1", "metric/env/0/x", "metric/env/1/x", "metric/loss"]
    assert siblings(names, "accuracy/3") == [f"accuracy/{env}" for env in range(12)]
    assert siblings(names, "drift/env07") == ["drift/env07"]
    assert siblings(names, "entropy.op") == ["entropy.op", "entropy.slot"]
    assert siblings(names, "metric/env/1/x") == ["metric/env/0/x", "metric/env/1/x"]
    assert siblings(names, "metric/loss") == siblings(names, "accuracy.mean") == []
    assert [mark_of(name) for name in ("accuracy/3", "drift/env07", "entropy.slot")] == ["3", "7", "sl"]


def test_every_row_with_charts_names_curves_that_exist() -> None:
    inputs = panel_inputs(state())
    for panel, renderer in PANELS.items():
        for name in renderer.charts(inputs):
            assert inputs.history(name) is not None, (panel, name)
