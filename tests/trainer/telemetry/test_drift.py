"""The drift formula against its closed form, and what leaves its averages alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch.trainer.config.anomaly_options import DriftConfig
from esper_overwatch.trainer.telemetry.drift import (
    DEFAULTS,
    EPSILON,
    FAST_MOMENTUM,
    MAX_STEP,
    MAX_USUAL_RATIO,
    DriftMonitor,
    Smoothing,
)

POOLS = {
    "env": (["env00"], Smoothing(0.99, 20)),
    "seed": (["env00.r0c0"], Smoothing(0.9, 5)),
    "policy": (["policy"], Smoothing(0.5, 1)),
}
SMOOTHING = [smoothing for _, smoothing in POOLS.values()]
K = len(POOLS)


def one(momentum: float, warmup: int) -> DriftMonitor:
    return DriftMonitor({"env": (["x"], Smoothing(momentum, warmup))})


def closed_form(samples: Any, momentum: float) -> float:
    """sum of beta^(t-i) x_i (1 - beta) over 1 - beta^t."""
    t = len(samples)
    weights = (1 - momentum) * momentum ** np.arange(t - 1, -1, -1)
    return float(weights @ samples / (1 - momentum**t))


def bounded_average(samples: list[float], smoothing: Smoothing) -> float:
    """The average of samples each of which is cut to within a factor of the trusted average before it."""
    kept: list[float] = []
    for t, x in enumerate(samples):
        before = closed_form(np.array(kept), smoothing.momentum) if t >= smoothing.warmup else 0.0
        is_cut = before >= EPSILON and smoothing.momentum > FAST_MOMENTUM
        kept.append(min(max(x, before / MAX_STEP), MAX_STEP * before) if is_cut else x)
    return closed_form(np.array(kept), smoothing.momentum)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=60))
def test_average_equals_the_closed_form(samples: list[float]) -> None:
    monitor = DriftMonitor(POOLS)
    for t, x in enumerate(samples):
        event = monitor.update(np.full(K, x), np.full(K, np.nan))
        assert event is not None
        for k, smoothing in enumerate(SMOOTHING):
            before = samples[:t]
            if t < smoothing.warmup:
                assert event.norm_drift[k] is None
            else:
                ema = bounded_average(before, smoothing)
                expected = abs(x - ema) / max(ema, EPSILON)
                assert event.norm_drift[k] == pytest.approx(expected, rel=1e-7, abs=1e-7)
            now = bounded_average(samples[: t + 1], smoothing)
            assert event.norm_ema[k] == pytest.approx(now, rel=1e-9)
        assert event.health_drift == [None] * K


def test_no_explosion_near_zero() -> None:
    monitor = one(0.9, 1)
    for _ in range(3):
        monitor.update(np.zeros(1), np.zeros(1))
    event = monitor.update(np.array([1e-6]), np.zeros(1))
    assert event is not None
    assert event.norm_drift == [1.0]  # against the clamp, not against zero


@given(st.lists(st.sampled_from([1.0, 2.0, np.nan]), min_size=1, max_size=50))
def test_absent_samples_change_nothing(stream: list[float]) -> None:
    with_gaps, without = (one(0.9, 3) for _ in range(2))
    for x in stream:
        event = with_gaps.update(np.array([x]), np.array([np.nan]))
        assert (event is None) == np.isnan(x)
        if not np.isnan(x):
            assert event == without.update(np.array([x]), np.array([np.nan]))


def test_an_infinite_norm_is_infinite_drift_and_poisons_nothing() -> None:
    monitor = one(0.9, 2)
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
    monitor = DriftMonitor(POOLS)
    event = monitor.update(np.array([1.0, np.nan, np.nan]), np.array([1.0, np.nan, 0.5]))
    assert event is not None
    assert event.source == ["env00", "policy"]
    assert event.health == [1.0, 0.5]


def test_a_new_seed_starts_over() -> None:
    monitor = DriftMonitor(POOLS)
    for _ in range(30):
        monitor.update(np.full(K, 4.0), np.ones(K))
    monitor.restart("seed", np.array([True]))
    event = monitor.update(np.full(K, 1.0), np.ones(K))
    assert event is not None
    assert event.norm_drift == [0.75, None, 0.75]
    assert event.norm_ema[1] == 1.0


@given(st.integers(0, 2**32), st.integers(1, 30))
@settings(max_examples=20)
def test_resume_is_exact(seed: int, cut: int) -> None:
    random = np.random.default_rng(seed)
    stream = random.lognormal(size=(40, 2, K))
    stream[random.random(stream.shape) < 0.2] = np.nan
    whole, first, second = (DriftMonitor(POOLS) for _ in range(3))
    expected = [whole.update(*x) for x in stream]
    found = [first.update(*x) for x in stream[:cut]]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    found += [second.update(*x) for x in stream[cut:]]
    assert repr(found) == repr(expected)  # repr of a float is exact, and equal for NaN
    for part, tensors in whole.state_dict().items():
        for name, value in tensors.items():
            assert torch.equal(value, second.state_dict()[part][name])


def test_what_all_sources_do_is_usual() -> None:
    random = np.random.default_rng(1)
    names = [f"env{i:02d}" for i in range(16)]

    def limits(spread: float) -> tuple[float, float]:
        monitor = DriftMonitor({"env": (names, Smoothing(0.99, 20))})
        for _ in range(25):
            monitor.update(random.normal(1.0, spread, 16), np.ones(16))
        assert monitor.checks("env") == ({}, {})  # what is usual is not known yet
        for _ in range(75):
            monitor.update(random.normal(1.0, spread, 16), np.ones(16))
        readings, limits = monitor.checks("env")
        assert readings["env.norm_drift"].shape == (16,)
        return limits["env.norm_drift"]

    assert limits(spread=0.01) == (0.5, None)  # a calm run is held to the table
    warning, _ = limits(spread=0.3)
    median = 0.6745 * 0.3  # of |x - mean| under a normal distribution
    assert warning == pytest.approx(DEFAULTS.unusual_factor * median, rel=0.25)


@pytest.mark.parametrize(
    ("options", "known_after", "factor"),
    [
        ({}, 10, 8.0),
        ({"unusual_factor": 2.0}, 10, 2.0),
        ({"usual_warmup": 3}, 3, 8.0),
        ({"usual_momentum": 0.0}, 10, 8.0),
    ],
)
def test_what_is_unusual_is_an_option(options: dict[str, Any], known_after: int, factor: float) -> None:
    """A source that drifts more and more."""
    monitor = DriftMonitor({"env": (["x"], Smoothing(0.99, 1))}, DriftConfig(**options))
    drifts: list[float] = []
    for sample in range(1, 16):
        event = monitor.update(np.array([2.0**sample]), np.ones(1))
        _, limits = monitor.checks("env")
        assert ("env.norm_drift" in limits) == (len(drifts) >= known_after)
        if limits:
            usual = closed_form(drifts, options.get("usual_momentum", 0.99))
            assert limits["env.norm_drift"][0] == pytest.approx(factor * usual)
        assert event is not None
        most = MAX_USUAL_RATIO * usual if limits else np.inf
        drifts += [min(drift, most) for drift in event.norm_drift if drift is not None]


def test_an_outburst_leaves_no_drift_behind() -> None:
    """Before, what was healthy again drifted for a hundred epochs from an average that held the outburst."""
    monitor = one(0.99, 20)
    for _ in range(40):
        monitor.update(np.ones(1), np.ones(1))
    for _ in range(8):
        monitor.update(np.array([50.0]), np.ones(1))
    event = monitor.update(np.ones(1), np.ones(1))
    assert event is not None
    assert event.norm_drift[0] == pytest.approx(0.0, abs=0.2)


def test_health_that_rises_is_no_drift() -> None:
    monitor = one(0.9, 2)
    for health in (*[1.0] * 14, 0.5):
        monitor.update(np.ones(1), np.array([health]))
    assert monitor.checks("env")[0]["env.health_drift"][0] > 0.4
    for health in (*[0.5] * 30, 1.0):
        monitor.update(np.ones(1), np.array([health]))
    assert monitor.checks("env")[0]["env.health_drift"][0] == 0.0


def test_one_sick_source_does_not_become_the_usual() -> None:
    names = [f"env{i:02d}" for i in range(8)]
    monitor = DriftMonitor({"env": (names, Smoothing(0.99, 20))})
    sick = np.ones(8)
    sick[3] = np.inf
    for epoch in range(60):
        monitor.update(np.ones(8) if epoch < 40 else sick, np.ones(8))
    readings, limits = monitor.checks("env")
    assert limits["env.norm_drift"] == (0.5, None)
    assert readings["env.norm_drift"].tolist() == [0.0] * 3 + [np.inf] + [0.0] * 4
