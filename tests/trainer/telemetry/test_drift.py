"""The drift formula against its closed form, and what leaves its averages alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.telemetry.drift import EPSILON, DriftMonitor, Smoothing

SMOOTHING = [Smoothing(0.99, 20), Smoothing(0.9, 5), Smoothing(0.5, 1)]
SOURCES = ["env00", "env00.r0c0", "policy"]
K = len(SOURCES)


def closed_form(samples: Any, momentum: float) -> float:
    """sum of beta^(t-i) x_i (1 - beta) over 1 - beta^t."""
    t = len(samples)
    weights = (1 - momentum) * momentum ** np.arange(t - 1, -1, -1)
    return float(weights @ samples / (1 - momentum**t))


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=60))
@settings(deadline=None)
def test_average_equals_the_closed_form(samples: list[float]) -> None:
    monitor = DriftMonitor(SOURCES, SMOOTHING)
    for t, x in enumerate(samples):
        event = monitor.update(np.full(K, x), np.full(K, np.nan))
        assert event is not None
        for k, smoothing in enumerate(SMOOTHING):
            before = samples[:t]
            if t < smoothing.warmup:
                assert event.norm_drift[k] is None
            else:
                ema = closed_form(np.array(before), smoothing.momentum)
                expected = abs(x - ema) / max(ema, EPSILON)
                assert event.norm_drift[k] == pytest.approx(expected, rel=1e-7, abs=1e-7)
            now = closed_form(np.array(samples[: t + 1]), smoothing.momentum)
            assert event.norm_ema[k] == pytest.approx(now, rel=1e-9)
        assert event.health_drift == [None] * K


def test_no_explosion_near_zero() -> None:
    monitor = DriftMonitor(["x"], [Smoothing(0.9, 1)])
    for _ in range(3):
        monitor.update(np.zeros(1), np.zeros(1))
    event = monitor.update(np.array([1e-6]), np.zeros(1))
    assert event is not None
    assert event.norm_drift == [1.0]  # against the clamp, not against zero


@given(st.lists(st.sampled_from([1.0, 2.0, np.nan]), min_size=1, max_size=50))
@settings(deadline=None)
def test_absent_samples_change_nothing(stream: list[float]) -> None:
    with_gaps, without = (DriftMonitor(["x"], [Smoothing(0.9, 3)]) for _ in range(2))
    for x in stream:
        event = with_gaps.update(np.array([x]), np.array([np.nan]))
        assert (event is None) == np.isnan(x)
        if not np.isnan(x):
            assert event == without.update(np.array([x]), np.array([np.nan]))


def test_an_infinite_norm_is_infinite_drift_and_poisons_nothing() -> None:
    monitor = DriftMonitor(["x"], [Smoothing(0.9, 2)])
    for _ in range(3):
        monitor.update(np.ones(1), np.ones(1))
    event = monitor.update(np.array([np.inf]), np.array([0.0]))
    assert event is not None
    assert event.norm_drift == [np.inf]
    assert event.norm_ema == [1.0]
    event = monitor.update(np.array([np.nan]), np.array([0.5]))
    assert event is not None
    assert np.isnan(event.norm[0])  # measured, and not a number
    assert event.norm_drift == [None]


def test_events_hold_only_what_was_measured() -> None:
    monitor = DriftMonitor(SOURCES, SMOOTHING)
    event = monitor.update(np.array([1.0, np.nan, np.nan]), np.array([1.0, np.nan, 0.5]))
    assert event is not None
    assert event.source == ["env00", "policy"]
    assert event.health == [1.0, 0.5]


def test_a_new_seed_starts_over() -> None:
    monitor = DriftMonitor(SOURCES, SMOOTHING)
    for _ in range(30):
        monitor.update(np.full(K, 4.0), np.ones(K))
    monitor.restart(np.array([False, True, False]))
    event = monitor.update(np.full(K, 1.0), np.ones(K))
    assert event is not None
    assert event.norm_drift == [0.75, None, 0.75]
    assert event.norm_ema[1] == 1.0


@given(st.integers(0, 2**32), st.integers(1, 30))
@settings(deadline=None, max_examples=20)
def test_resume_is_exact(seed: int, cut: int) -> None:
    random = np.random.default_rng(seed)
    stream = random.lognormal(size=(40, 2, K))
    stream[random.random(stream.shape) < 0.2] = np.nan
    whole, first, second = (DriftMonitor(SOURCES, SMOOTHING) for _ in range(3))
    expected = [whole.update(*x) for x in stream]
    found = [first.update(*x) for x in stream[:cut]]
    second.load_state_dict({k: v.clone() for k, v in first.state_dict().items()})
    found += [second.update(*x) for x in stream[cut:]]
    assert repr(found) == repr(expected)  # repr of a float is exact, and equal for NaN
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
