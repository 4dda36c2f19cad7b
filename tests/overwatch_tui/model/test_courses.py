"""Smoothed courses and quantiles over courses, against plain float arithmetic."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model.courses import Quantiles, Smoothed, quantile
from esper_overwatch.overwatch_tui.model.time_series import SECOND, History

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


def walk(seed: int, count: int = 300) -> History:
    history, draw = History(), random.Random(seed)
    for i in range(count):
        history.add(i * SECOND, draw.uniform(-1, 1))
    return history


@given(VALUES)
def test_quantiles_interpolate_as_the_standard_library_does(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=10, method="inclusive")
    for share, reference in zip([i / 10 for i in range(1, 10)], expected, strict=True):
        assert quantile(sorted(values), share) == pytest.approx(reference, rel=1e-9, abs=1e-6)


def test_a_band_holds_the_quantiles_of_each_bucket() -> None:
    courses = [walk(seed) for seed in range(9)]
    drawn = Quantiles(courses).buckets(299 * SECOND, 60 * SECOND, 12)
    for i, bucket in enumerate(drawn):
        means = [course.buckets(299 * SECOND, 60 * SECOND, 12)[i] for course in courses]
        known = [mean.mean for mean in means if mean is not None]
        tenths = statistics.quantiles(known, n=10, method="inclusive")
        assert bucket is not None
        assert bucket == pytest.approx((tenths[0], statistics.median(known), tenths[8]))


def test_a_band_leaves_out_who_has_no_value() -> None:
    late = History()
    late.add(50 * SECOND, 5.0)
    early = walk(1, 40)
    drawn = Quantiles([early, late]).buckets(59 * SECOND, 60 * SECOND, 6)
    assert drawn[5] == (5.0, 5.0, 5.0)
    assert drawn[0] is not None
    assert drawn[4] is None
    assert Quantiles([]).buckets(0, SECOND, 3) == [None, None, None]


@pytest.mark.parametrize("weight", [0.6, 0.9])
def test_smoothing_is_the_moving_average_of_the_means(weight: float) -> None:
    history = walk(3)
    means = [history.buckets(299 * SECOND, 300 * SECOND, 300)[i] for i in range(300)]
    total = known = 0.0
    reference = []
    for bucket in means:
        assert bucket is not None
        total = weight * total + (1 - weight) * bucket.mean
        known = weight * known + (1 - weight)
        reference.append(total / known)
    drawn = Smoothed(history, weight).buckets(299 * SECOND, 60 * SECOND, 60)
    found = [bucket.mean for bucket in drawn if bucket is not None]
    assert len(found) == 60
    assert found == pytest.approx(reference[-60:], abs=0.02), "what came before the edge is forgotten"


def test_smoothing_does_not_depend_on_the_left_edge() -> None:
    smooth = Smoothed(walk(4), 0.9)
    before = smooth.buckets(250 * SECOND, 60 * SECOND, 60)
    after = smooth.buckets(251 * SECOND, 60 * SECOND, 60)
    for old, new in zip(before[1:], after, strict=False):
        assert old is not None
        assert new is not None
        assert new.mean == pytest.approx(old.mean, abs=0.01)


def test_without_weight_nothing_is_smoothed() -> None:
    history = walk(5)
    raw = history.buckets(299 * SECOND, 60 * SECOND, 20)
    drawn = Smoothed(history, 0.0).buckets(299 * SECOND, 60 * SECOND, 20)
    assert [b.mean for b in drawn if b is not None] == [b.mean for b in raw if b is not None]
