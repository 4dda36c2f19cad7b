"""Collecting backs off where it costs too much, comes forward again, and a fixed stride stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.events import TelemetryStride
from esper_overwatch.trainer.telemetry.collection.interval import (
    MAX_INTERVAL_EPOCHS,
    MIN_SAMPLES,
    CollectionInterval,
)


def run(stride: CollectionInterval, epochs: int, cost: float) -> tuple[list[bool], list[TelemetryStride]]:
    """Epochs of a second; which were collected, and what was told."""
    due, told = [], []
    for _ in range(epochs):
        due.append(stride.due)
        event = stride.record_epoch(1.0, cost if stride.due else None)
        told += [event] if event else []
    return due, told


def test_it_backs_off_says_so_and_comes_forward_again() -> None:
    stride = CollectionInterval(budget=0.01)
    due, (event,) = run(stride, 100, 0.035)
    assert (event.old, event.new, event.share, event.budget) == (1, 4, pytest.approx(0.035), 0.01)
    assert all(due[:MIN_SAMPLES])
    assert due[MIN_SAMPLES:] == [(i % 4) == 3 for i in range(100 - MIN_SAMPLES)]
    _, told = run(stride, 200, 0.0005)
    assert [(e.old, e.new) for e in told] == [(4, 2), (2, 1)]


@pytest.mark.parametrize("cost", [0.0101, 0.013, 0.019, 0.02, 0.05, 9.0])
def test_at_a_steady_cost_it_settles_within_the_budget(cost: float) -> None:
    stride = CollectionInterval(budget=0.01)
    due, told = run(stride, 3000, cost)
    assert len(told) == 1
    share = cost * sum(due[-MAX_INTERVAL_EPOCHS:]) / MAX_INTERVAL_EPOCHS
    assert share <= max(0.01, cost / MAX_INTERVAL_EPOCHS)


@given(st.integers(1, 100), st.floats(1e-6, 10.0))
def test_a_fixed_stride_stays(fixed: int, cost: float) -> None:
    due, told = run(CollectionInterval(fixed, budget=0.01), 300, cost)
    assert due == [i % fixed == 0 for i in range(300)]
    assert told == []


def test_it_goes_on_where_it_was() -> None:
    stride = CollectionInterval(budget=0.01)
    run(stride, 30, 0.035)
    other = CollectionInterval(budget=0.01)
    other.load_state_dict(stride.state_dict())
    assert run(other, 9, 0.035)[0] == run(stride, 9, 0.035)[0]
    configured = CollectionInterval(2)
    configured.load_state_dict(stride.state_dict())
    assert sum(run(configured, 8, 0.0)[0]) == 4
