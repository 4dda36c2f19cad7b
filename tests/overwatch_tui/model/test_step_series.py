"""Curves by step: whole, bounded, the same for the same steps whenever they came."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model.curves import Curves, metric_curve
from esper_overwatch.overwatch_tui.model.step_series import MAX_BUCKETS, STEP, StepHistory
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.render.chart_axis import MAX_ZOOM, step_axis
from esper_overwatch.overwatch_tui.render.plot import GUTTER, plot_grid
from esper_overwatch.overwatch_tui.render.theme import UNICODE
from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.messages import events as ev
from tests.overwatch_tui import journal
from tests.overwatch_tui.harness import state
from tests.overwatch_tui.runs import PUBLISHED


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(-10, 10)), min_size=1, max_size=60))
def test_buckets_hold_least_sum_and_greatest(values: list[tuple[int, float]]) -> None:
    history, many = StepHistory(), [(step * 7, 0.5) for step in range(3 * MAX_BUCKETS)]
    for step, value in (*many, *values):
        history.add(step * STEP, value)
    (ring,) = history._rings
    assert len(ring.index) <= MAX_BUCKETS
    assert all(one < other for one, other in pairwise(ring.index))
    whole: dict[int, list[float]] = {}
    for step, value in (*many, *values):
        whole.setdefault(step * STEP // ring.dt, []).append(value)
    assert list(ring.index) == sorted(whole)
    for i, index in enumerate(ring.index):
        found = whole[index]
        assert math.isclose(ring.low[i], min(found), rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(ring.high[i], max(found), rel_tol=1e-6, abs_tol=1e-6)
        assert (math.isclose(ring.total[i], sum(found), abs_tol=1e-6), ring.count[i]) == (True, len(found))


def published(seconds_a_step: float, *, steps: int = 300, first: int = 0) -> Curves:
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    for step in range(first, first + steps):
        run.emit(ev.Scalars(step=step, values={"loss": 1 / (step + 1)}), after=round(seconds_a_step * SECOND))
    curves = Curves()
    for line in run.lines:
        curves.fold(decode_line(line))
    return curves


def test_slow_and_fast_runs_of_equal_loss_are_equal() -> None:
    slow, fast = published(0.3), published(0.001)
    axis = step_axis(slow, by_round=False, zoom=0, end=None)
    assert axis == step_axis(fast, by_round=False, zoom=0, end=None)
    drawn = [one.steps[metric_curve("loss")].buckets(axis.now, axis.window, 120) for one in (slow, fast)]
    assert drawn[0] == drawn[1]
    assert all(bucket is not None for bucket in drawn[0][:119]), "a run of a third of a second fills it"


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, MAX_ZOOM))
def test_axis_holds_the_newest_step(first: int, more: int, zoom: int) -> None:
    curves = Curves()
    curves.first_step = first
    curves.reached.add(SECOND, first + more)
    axis = step_axis(curves, by_round=False, zoom=zoom, end=None)
    assert axis.now - axis.window <= (first + more) * STEP <= axis.now
    for columns in (20, 57, 120):
        grid = plot_grid(GUTTER + columns, axis, UNICODE)
        assert 0 <= grid.column_of((first + more) * STEP) < columns
        if zoom == 0:
            assert 0 <= grid.column_of(first * STEP) < columns
    if zoom == 0:
        assert axis.now - axis.window <= first * STEP
        assert axis.window <= max(first + more, 2) * STEP * 1.5 + STEP


def test_training_counts_its_epochs() -> None:
    curves = state(16, 3).curves
    epochs = curves.epochs_per_round
    assert curves.max_step == 3 * epochs
    points = curves.steps["accuracy/3"].points(0)
    assert [at // STEP for at, _ in points] == list(range(1, 3 * epochs + 1))
    axis = step_axis(curves, by_round=True, zoom=0, end=None)
    assert axis.label(2 * epochs * STEP) == "round 2"


def test_what_is_played_again_takes_the_place_of_what_was() -> None:
    run = journal.Run(rounds=2)
    run.make()
    curves = Curves()
    for line in run.lines:
        curves.fold(decode_line(line))
    epochs = curves.epochs_per_round
    run.emit(ev.RunRewound(round=2, epoch=1, from_round=2, from_epoch=epochs, last={}), after=SECOND)
    curves.fold(decode_line(run.lines[-1]))
    assert curves.max_step == epochs + 1
    assert curves.steps["accuracy/3"].points(0)[-1][0] == (epochs + 1) * STEP


def test_past_moment_ends_at_the_step_of_then() -> None:
    curves = published(1.0, steps=120)
    first = curves.histories[metric_curve("loss")].first_ts
    until = (first // (60 * SECOND) + 1) * 60 * SECOND
    cut = curves.cut(until)
    assert cut.max_step == (until - 1 - first) // SECOND
    assert curves.max_step == 119


def test_steps_may_be_negative_or_huge() -> None:
    history = StepHistory()
    for step in (3, -5, 2**40):
        history.add(step * STEP, float(step))
    (ring,) = history._rings
    assert list(ring.index) == [-5, 3, 2**40]
    assert list(ring.low) == list(ring.high) == [-5.0, 3.0, 2.0**40]
