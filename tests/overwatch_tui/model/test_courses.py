"""Smoothed courses, against plain float arithmetic."""

from __future__ import annotations

import random

import pytest

from esper_overwatch.overwatch_tui.model.courses import Smoothed
from esper_overwatch.overwatch_tui.model.time_series import SECOND, History


def walk(seed: int, count: int = 300) -> History:
    history, draw = History(), random.Random(seed)
    for i in range(count):
        history.add(i * SECOND, draw.uniform(-1, 1))
    return history


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
