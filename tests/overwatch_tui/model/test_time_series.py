"""Buckets anchored to time."""

from __future__ import annotations

import math
import pickle

from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model.time_series import (
    RESOLUTIONS,
    SECOND,
    SHORT_RESOLUTIONS,
    SLACK,
    History,
)


def test_a_bucket_holds_minimum_mean_and_maximum() -> None:
    history = History()
    for i, value in enumerate((3.0, 1.0, 5.0)):
        history.add(100 * SECOND + i * 200_000, value)
    (bucket,) = history.buckets(100 * SECOND + 900_000, SECOND, 1)
    assert bucket is not None
    assert (bucket.low, bucket.mean, bucket.high) == (1.0, 3.0, 5.0)


def test_chart_moves_once_per_bucket() -> None:
    history = History()
    window, count = 60 * SECOND, 6
    for second in range(0, 600, 2):
        history.add(second * SECOND, float(second % 7))
    history.add(600 * SECOND, 1.0)
    before = history.buckets(600 * SECOND, window, count)
    history.add(605 * SECOND, 9.0)
    within = history.buckets(609 * SECOND, window, count)
    assert within[:-1] == before[:-1]
    assert within[-1] != before[-1]
    history.add(610 * SECOND, 2.0)
    moved = history.buckets(610 * SECOND, window, count)
    assert moved[:-1] == within[1:]


def test_hole_holds_the_value_before_it() -> None:
    history = History()
    history.add(10 * SECOND, 4.0)
    history.add(40 * SECOND, 8.0)
    buckets = history.buckets(60 * SECOND, 70 * SECOND, 7)
    assert [None if b is None else b.mean for b in buckets] == [None, 4.0, 4.0, 4.0, 8.0, None, None]


def test_what_is_not_finite_or_not_measured_leaves_no_trace() -> None:
    history = History()
    for value in (None, math.nan, math.inf, -math.inf):
        history.add(SECOND, value)
    assert history.buckets(SECOND, SECOND, 1) == [None]
    assert history.first_ts == 0


def test_memory_is_bounded_and_the_coarse_rings_reach_far_back() -> None:
    history = History()
    hours = 30
    for second in range(0, hours * 3600, 5):
        history.add(second * SECOND, float(second))
    for ring, (_, capacity) in zip(history._rings, RESOLUTIONS, strict=True):
        assert len(ring.index) <= capacity + SLACK
    day = history.buckets(hours * 3600 * SECOND - 1, 24 * 3600 * SECOND, 48)
    assert all(bucket is not None for bucket in day)


def test_buckets_of_one_value_take_half_of_the_memory() -> None:
    once, twice = History(SHORT_RESOLUTIONS), History(SHORT_RESOLUTIONS)
    for second in range(0, 3600, 10):
        for history in (once, twice, twice):
            history.add(second * SECOND, float(second % 7))
    sizes = [len(pickle.dumps(history._rings)) for history in (once, twice)]
    assert sizes[0] < 14 * len(once._rings[0].index) + 500
    assert sizes[0] < 0.65 * sizes[1]
    drawn = [history.buckets(3599 * SECOND, 3600 * SECOND, 60) for history in (once, twice)]
    assert drawn[0] == drawn[1]


def test_seldom_measured_values_are_kept_as_long_as_others() -> None:
    history = History()
    for minute in range(24 * 60):
        history.add(minute * 60 * SECOND, float(minute))
    for ring, (dt, capacity) in zip(history._rings, RESOLUTIONS, strict=True):
        assert ring.index[-1] - ring.index[0] < capacity + SLACK
        assert len(ring.index) <= 1 + (capacity + SLACK) * dt // (60 * SECOND)
    half = history.buckets(24 * 3600 * SECOND - 1, 12 * 3600 * SECOND, 720)
    assert [bucket.mean for bucket in half if bucket is not None] == list(range(720, 1440))
    day = history.buckets(24 * 3600 * SECOND - 1, 24 * 3600 * SECOND, 288)
    assert [bucket.mean for bucket in day if bucket is not None] == list(range(2, 1440, 5))
    history.add(23 * 3600 * SECOND, 5000.0)
    assert history._rings[0].index[0] > 23 * 3600, "too old for the finest buckets"
    late = history.buckets(24 * 3600 * SECOND - 1, 12 * 3600 * SECOND, 720)[11 * 60]
    assert late is not None
    assert late.high == 5000.0


@given(
    st.lists(st.tuples(st.integers(0, 400), st.floats(-1e6, 1e6)), max_size=80),
    st.integers(0, 500),
    st.integers(1, 300),
    st.integers(1, 50),
)
def test_any_order_of_times_is_taken(
    values: list[tuple[int, float]], now: int, window: int, count: int
) -> None:
    for resolutions in (RESOLUTIONS, SHORT_RESOLUTIONS):
        history = History(resolutions)
        for second, value in values:
            history.add(second * SECOND, value)
        buckets = history.buckets(now * SECOND, window * SECOND, count)
        assert len(buckets) == count
        means = [None if bucket is None else bucket.mean for bucket in buckets]
        assert history.means(now * SECOND, window * SECOND, count) == means
        for bucket in buckets:
            if bucket is not None:
                assert bucket.low <= bucket.mean + abs(bucket.mean) * 1e-5 + 1e-3
                assert bucket.mean <= bucket.high + abs(bucket.high) * 1e-5 + 1e-3


@given(st.permutations(range(0, 900, 7)))
def test_order_in_which_values_come_does_not_matter(seconds: list[int]) -> None:
    in_order, mixed = History(), History()
    for second in sorted(seconds):
        in_order.add(second * SECOND, float(second % 11))
    for second in seconds:
        mixed.add(second * SECOND, float(second % 11))
    for window in (60, 300, 900):
        assert mixed.buckets(900 * SECOND, window * SECOND, 20) == in_order.buckets(
            900 * SECOND, window * SECOND, 20
        )


@given(st.lists(st.integers(0, 6 * 3600), min_size=1, unique=True), st.integers(1, 360))
def test_cut_history_is_that_of_the_values_before(seconds: list[int], minute: int) -> None:
    until = minute * 60 * SECOND
    full, before = History(), History()
    for second in sorted(seconds):
        full.add(second * SECOND, float(second % 11))
        if second * SECOND < until:
            before.add(second * SECOND, float(second % 11))
    for window, count in ((6 * 3600 * SECOND, 90), (12 * 3600 * SECOND, 72)):
        assert full.cut(until).buckets(until - 1, window, count) == before.buckets(until - 1, window, count)


def test_week_is_kept_in_a_third_of_its_minutes() -> None:
    history = History()
    week = 7 * 24 * 60
    for minute in range(week):
        history.add(minute * 60 * SECOND, float(minute))
    assert sum(len(ring.index) for ring in history._rings) <= week // 3
    drawn = history.buckets(week * 60 * SECOND - 1, week * 60 * SECOND, 84)
    assert [each.mean for each in drawn if each is not None] == [120 * i + 59.5 for i in range(84)]


def test_window_in_the_far_past_is_drawn_from_coarser_buckets() -> None:
    history = History()
    for second in range(0, 5 * 3600, 2):
        history.add(second * SECOND, float(second // 600))
    then = history.buckets(3600 * SECOND, 900 * SECOND, 108)
    assert all(bucket is not None for bucket in then[8:-8])
    assert then[50] is not None
    assert then[50].mean == 5.0, "the middle of the window, 52 minutes after the beginning"
    means = [None if bucket is None else bucket.mean for bucket in then]
    assert history.means(3600 * SECOND, 900 * SECOND, 108) == means
