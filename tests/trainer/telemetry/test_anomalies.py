"""When a check raises, changes and clears, against a reference that does one source at a time."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.checkpoint_files import CheckpointError
from esper_overwatch.trainer.config.anomaly_options import SIGNALS, WAITING, configured_thresholds
from esper_overwatch.trainer.config.load import OPTIONS, ConfigError, load
from esper_overwatch.trainer.telemetry.anomalies import CHECKS, AnomalyCheck, AnomalyDetector

ENVS = 3
PLAIN = {
    row.signal: row
    for row in (
        *THRESHOLDS.values(),
        Threshold(
            signal="norm_drift",
            warning=0.5,
            critical=1.0,
            raise_after=2,
            clear_after=5,
            clear_ratio=0.8,
            hint="escalate",
        ),
        Threshold(signal="gradient_health", warning=0.8, critical=0.3, low=True, raise_after=2),
        Threshold(signal="gradient_exploding", warning=5.0, critical=10.0, raise_after=2),
        Threshold(signal="stalled_epochs", warning=10.0, critical=30.0, raise_after=3),
        Threshold(signal="credit", warning=5.0, critical=10.0, raise_after=3),
        Threshold(signal="value_collapse", warning=0.1, critical=-0.4, low=True, raise_after=3),
    )
}
"""Rows without a warm-up and with both severities: the rules themselves, whatever the table says."""


def detector(emitter: Emitter, thresholds: Mapping[str, Threshold] = PLAIN) -> AnomalyDetector:
    hosts = [f"env{i:02d}" for i in range(ENVS)]
    return AnomalyDetector(
        emitter,
        {"env": hosts, "seed": [f"{h}.r0c0" for h in hosts]},
        {"env": range(ENVS), "seed": range(ENVS)},
        thresholds,
    )


def told(emitter: Emitter) -> list[Anomaly]:
    return [item.event for item in emitter.drain(10**6)]  # type: ignore[misc]


class OneSource:
    """The rules in plain words, for one source."""

    def __init__(self, threshold: Threshold) -> None:
        self.t = threshold
        self.active = self.breaches = self.calm = self.count = 0

    def severity(self, value: float, ratio: float = 1.0) -> int:
        reached = [
            value <= limit * ratio if self.t.low else value >= limit * ratio
            for limit in (self.t.warning, self.t.critical or 0.0)
        ]
        return sum(reached)

    def step(self, value: float) -> tuple[int, int] | None:
        """(severity, count) if it is to be told."""
        if math.isnan(value):
            return None
        before, now = self.active, self.severity(value)
        self.breaches = self.breaches + 1 if now else 0
        if before == 0:
            if now and self.breaches >= self.t.raise_after:
                self.active, self.count = now, self.breaches
        else:
            self.count += now > 0
            held = self.severity(value, self.t.clear_ratio)
            if now > before:
                self.active = now
            self.calm = self.calm + 1 if held < before else 0
            if self.calm >= self.t.clear_after:
                self.active, self.calm = held, 0
        return (self.active, self.count) if self.active != before else None


def around(threshold: Threshold) -> st.SearchStrategy[float]:
    assert threshold.critical is not None
    limits = (threshold.warning, threshold.critical)
    return st.sampled_from([limit * f for limit in limits for f in (0.5, 0.75, 0.95, 1.0, 1.05, 1.2, 2.0)])


@pytest.mark.parametrize("kind", ["norm_drift", "gradient_health", "gradient_exploding", "stalled"])
@given(data=st.data())
def test_all_sources_at_once_equal_one_at_a_time(kind: str, data: st.DataObject) -> None:
    check = next(c for c in CHECKS if c.scope == "env" and c.kind == kind)
    threshold = PLAIN[check.threshold]
    value = st.just(math.nan) | around(threshold)
    stream = data.draw(st.lists(st.lists(value, min_size=ENVS, max_size=ENVS), max_size=40))
    emitter = Emitter()
    found = detector(emitter)
    reference = [OneSource(threshold) for _ in range(ENVS)]
    for values in stream:
        found.check_all({check.reading: np.array(values)})
        expected = []
        for env, (source, x) in enumerate(zip(reference, values, strict=True)):
            change = source.step(x)
            if change is not None:
                expected.append((env, change[0] > 0, x, change[1]))
        events = [(item.env, item.event) for item in emitter.drain(10**6)]
        assert [(env, e.active, e.value, e.count) for env, e in events] == expected  # type: ignore[attr-defined]


def test_every_check_has_an_option_or_limits_that_move() -> None:
    assert {check.threshold for check in CHECKS} == {*SIGNALS, "kl", "value_collapse"}
    options = {f"anomalies.{name}" for name in (*SIGNALS, *(name for name, *_ in WAITING))}
    assert {key for key in OPTIONS if key.startswith("anomalies.")} == options


@pytest.mark.parametrize("check", [c for c in CHECKS if c.threshold in SIGNALS], ids=lambda c: c.reading)
def test_limits_of_each_check_are_an_option(check: AnomalyCheck) -> None:
    """A value that is harmless by the table is told by one limit, and critical by the other."""
    default = THRESHOLDS[check.threshold]
    harmless = default.warning * (1.5 if default.low else 0.5)
    limits = (harmless * 1.1, harmless * 0.5) if default.low else (harmless * 0.9, harmless * 2.0)
    cfg = load(sets=[f"anomalies.{check.threshold}={limits[0]!r},{limits[1]!r}"])
    told_by = []
    for anomalies in (load().anomalies, cfg.anomalies):
        emitter = Emitter()
        found = detector(emitter, configured_thresholds(anomalies))
        calm = limits[0] * (2.0 if default.low else 0.5)
        for _ in range(default.warm_up):
            found.check_all({check.reading: calm})
        for value in [harmless] * default.raise_after + [limits[1]] * default.raise_after:
            found.check_all({check.reading: value})
        told_by.append([(e.severity, e.threshold) for e in told(emitter) if e.kind == check.kind])
    before, after = told_by
    assert before != after
    sources = len(after) // 2
    first = "info" if default.is_note else "warning"
    assert after == [(first, limits[0])] * sources + [("critical", limits[1])] * sources


@pytest.mark.parametrize(
    "check",
    [c for c in CHECKS if c.threshold in SIGNALS and "nonfinite" not in c.threshold],
    ids=lambda c: c.reading,
)
def test_waiting_of_each_check_is_an_option(check: AnomalyCheck) -> None:
    """Raised at the third breach; cleared at the second calm reading, of which one is too close."""
    cfg = load(sets=["anomalies.raise_after=3", "anomalies.clear_after=2", "anomalies.clear_margin=0.5"])
    threshold = THRESHOLDS[check.threshold]
    breach = threshold.warning
    close, calm = (breach * 1.4, breach * 1.6) if threshold.low else (breach * 0.6, breach * 0.4)
    emitter = Emitter()
    found = detector(emitter, configured_thresholds(cfg.anomalies))
    told_at = []
    for _ in range(threshold.warm_up):
        found.check_all({check.reading: calm})
    for value in (breach, breach, breach, close, calm, close, calm, calm):
        found.check_all({check.reading: value})
        told_at.append({e.active for e in told(emitter) if e.kind == check.kind})
    assert told_at == [set(), set(), {True}, set(), set(), set(), set(), {False}]


@pytest.mark.parametrize("check", [c for c in CHECKS if "nonfinite" in c.threshold], ids=lambda c: c.reading)
def test_values_that_are_not_finite_never_wait(check: AnomalyCheck) -> None:
    cfg = load(sets=["anomalies.raise_after=9", "anomalies.clear_after=2"])
    emitter = Emitter()
    found = detector(emitter, configured_thresholds(cfg.anomalies))
    told_at = []
    for value in (1.0, 0.0, 0.0):
        found.check_all({check.reading: value})
        told_at.append({e.active for e in told(emitter)})
    assert told_at == [{True}, set(), {False}]


def test_limits_that_move_keep_their_waiting() -> None:
    """Those of `value_collapse` may be below 0, where a margin would be on the wrong side."""
    cfg = load(sets=["anomalies.raise_after=9", "anomalies.clear_margin=0.5"])
    table = configured_thresholds(cfg.anomalies)
    assert table["value_collapse"] == THRESHOLDS["value_collapse"]
    assert (table["kl"].raise_after, table["kl"].clear_ratio) == (9, 0.5)
    assert configured_thresholds(load().anomalies) == THRESHOLDS


@pytest.mark.parametrize("limits", ["10,5", "5,10,20", "nan,1", "-1,5", "", "a,b"])
def test_limits_that_make_no_sense_are_refused(limits: str) -> None:
    with pytest.raises(ConfigError, match=r"anomalies\.credit") as refused:
        load(sets=[f"anomalies.credit={limits}"])
    assert "\n" not in str(refused.value)
    load(sets=["anomalies.credit=5,5", "anomalies.entropy=0.3,0.3", "anomalies.memory=0.9"])
    with pytest.raises(ConfigError, match="must not exceed the first"):
        load(sets=["anomalies.entropy=0.1,0.3"])


def test_raised_anomaly_is_complete_and_emitted_once() -> None:
    emitter = Emitter()
    found = detector(emitter)
    before = time.time_ns() // 1000
    for _ in range(10):
        found.check_all({"env.norm_drift": np.array([0.1, 0.7, 0.1])})
    (event,) = told(emitter)
    assert (event.kind, event.source, event.severity) == ("norm_drift", "env01", "warning")
    assert (event.value, event.threshold, event.count, event.active) == (0.7, 0.5, 2, True)
    assert before <= event.since <= time.time_ns() // 1000
    assert "escalate" in event.hint
    assert found.active == 1


def test_severity_changes_and_hysteresis() -> None:
    emitter = Emitter()
    found = detector(emitter)

    def feed(value: float, times: int = 1) -> list[tuple[str, bool]]:
        for _ in range(times):
            found.check_all({"env.norm_drift": np.array([value, 0.0, 0.0])})
        return [(e.severity, e.active) for e in told(emitter)]

    assert feed(0.6, 2) == [("warning", True)]
    assert feed(1.2) == [("critical", True)]
    assert feed(0.85, 20) == []  # under the critical limit, above 0.8 of it: stays
    assert feed(0.45, 5) == [("warning", True)]
    assert feed(0.45, 20) == []  # under the warning, above 0.8 of it: stays
    assert feed(0.3, 4) == []
    assert feed(0.3) == [("warning", False)]


def test_every_event_carries_the_worst_value_since_the_raise() -> None:
    emitter = Emitter()
    found = detector(emitter)
    for drift in (3.0, 0.1, 0.6, 1.4, 3.3, 1.1, *[0.6] * 5):  # 3.0 was one alone: not part of what is raised
        found.check_all({"env.norm_drift": np.array([drift, 0.0, 0.0])})
    assert [(e.severity, e.value, e.peak) for e in told(emitter)] == [
        ("critical", 1.4, 1.4),
        ("warning", 0.6, 3.3),
    ]
    for health in (0.7, 0.5, 0.2):
        found.check_all({"env.gradient_health": np.array([health, 1.0, 1.0])})
    assert [(e.severity, e.peak) for e in told(emitter)] == [("warning", 0.5), ("critical", 0.2)]


def test_what_is_not_measured_is_neither_raised_nor_cleared() -> None:
    emitter = Emitter()
    found = detector(emitter)
    found.check_all({"env.norm_drift": np.array([0.7, np.nan, 0.0])})
    found.check_all({"env.norm_drift": np.array([np.nan, np.nan, 0.0])})
    found.check_all({})
    assert told(emitter) == []
    found.check_all({"env.norm_drift": np.array([0.7, np.nan, 0.0])})
    assert [e.source for e in told(emitter)] == ["env00"]
    for _ in range(20):
        found.check_all({"env.norm_drift": np.full(ENVS, np.nan)})
    assert told(emitter) == []
    assert found.active == 1


def test_gone_seeds_take_their_anomalies_along() -> None:
    emitter = Emitter()
    found = detector(emitter)
    found.check_all({"seed.gradient_nonfinite": np.array([1.0, 0.0, 1.0])})
    found.check_all({"seed.norm_drift": np.array([0.9, 0.9, 0.9])})
    assert len(told(emitter)) == 2
    found.remove_sources("seed", np.array([True, True, False]))
    (cleared,) = told(emitter)
    assert (cleared.source, cleared.active, cleared.value) == ("env00.r0c0", False, None)
    found.check_all({"seed.norm_drift": np.array([0.9, 0.9, 0.9])})  # the second in a row for the third only
    assert [e.source for e in told(emitter)] == ["env02.r0c0"]


def test_limits_that_move() -> None:
    emitter = Emitter()
    found = detector(emitter)
    found.check_all({"critic.value_collapse": -0.1}, limits={"critic.value_collapse": (-0.5, -1.0)})
    found.check_all({"critic.value_collapse": -0.1}, limits={"critic.value_collapse": (0.0, -0.5)})
    assert told(emitter) == []
    for _ in range(PLAIN["value_collapse"].raise_after - 1):
        found.check_all({"critic.value_collapse": -0.1})  # the limits hold until set again
    (event,) = told(emitter)
    assert (event.source, event.severity, event.threshold) == ("critic", "warning", 0.0)


def test_a_reading_without_a_check_is_an_error() -> None:
    with pytest.raises(KeyError):
        detector(Emitter()).check_all({"env.mood": np.zeros(ENVS)})


def test_resume_is_exact() -> None:
    random = np.random.default_rng(3)
    stream: list[dict[str, Any]] = [
        {"env.norm_drift": random.random(ENVS) * 1.5, "env.gradient_health": random.random(ENVS)}
        for _ in range(60)
    ]

    def events(cut: int | None) -> list[Anomaly]:
        emitter = Emitter()
        found = detector(emitter)
        for i, readings in enumerate(stream):
            if i == cut:
                state = {name: tensor.clone() for name, tensor in found.state_dict().items()}
                assert all(isinstance(value, torch.Tensor) for value in state.values())
                found = detector(emitter)
                found.load_state_dict(state)
            found.check_all(readings)
        return [dataclasses.replace(e, since=0) for e in told(emitter)]

    assert events(cut=25) == events(cut=None)


def test_what_is_active_is_told_again_after_a_resume() -> None:
    old, resumed = detector(first := Emitter()), detector(again := Emitter())
    for norms in ([0.7, 1.4, 0.1], [0.6, 1.2, 0.9]):
        old.check_all({"env.norm_drift": np.array(norms)})
    resumed.load_state_dict(old.state_dict())
    resumed.emit_active()
    raised = [dataclasses.replace(e, value=None) for e in told(first)]
    assert [(e.source, e.severity, e.count) for e in raised] == [
        ("env00", "warning", 2),
        ("env01", "critical", 2),
    ]
    assert told(again) == raised
    assert resumed.take_raised() == [], "it escalates nothing anew"


def test_resumed_anomalies_keep_their_limits_and_their_pattern() -> None:
    old, resumed = detector(first := Emitter()), detector(again := Emitter())
    for _ in range(3):
        old.check_all(
            {"env.norm_drift": np.array([9.0, 5.0, 0.0]), "seed.reward_hacking": np.array([12.0, 0.0, 6.0])},
            limits={"env.norm_drift": (4.0, 8.0)},
            patterns={"seed.reward_hacking": np.array(["credit_beyond_gain", "", "credit_without_gain"])},
        )
    resumed.load_state_dict(old.state_dict())
    resumed.emit_active()
    raised = [(e.source, e.severity, e.threshold, e.pattern) for e in told(first)]
    assert raised == [
        ("env00", "critical", 8.0, ""),
        ("env01", "warning", 4.0, ""),
        ("env00.r0c0", "critical", 10.0, "credit_beyond_gain"),
        ("env02.r0c0", "warning", 5.0, "credit_without_gain"),
    ]
    assert [(e.source, e.severity, e.threshold, e.pattern) for e in told(again)] == raised


def test_options_of_a_resume_replace_limits_that_never_moved() -> None:
    old = detector(Emitter())
    for _ in range(2):
        old.check_all({"env.gradient_exploding": np.array([1e3, 0.0, 0.0])})
    options = configured_thresholds(load(sets=["anomalies.gradient_exploding=500,900"]).anomalies)
    resumed = detector(emitter := Emitter(), options)
    resumed.load_state_dict(old.state_dict())
    resumed.emit_active()
    assert [e.threshold for e in told(emitter)] == [900.0]


def test_what_has_just_begun_is_not_judged() -> None:
    rows = {**PLAIN, "norm_drift": dataclasses.replace(PLAIN["norm_drift"], warm_up=3)}
    found = detector(emitter := Emitter(), rows)

    def feed(times: int) -> list[str]:
        for _ in range(times):
            found.check_all({"env.norm_drift": np.array([0.7, 0.0, 0.0])})
        return [e.source for e in told(emitter)]

    assert feed(4) == []
    assert feed(1) == ["env00"], "three readings of warm-up, two breaches in a row"
    found.restart_warm_up("env", np.array([True, False, False]))
    assert feed(9) == [], "what is raised stays raised"
    found.remove_sources("env", np.array([True, False, False]))
    assert [e.active for e in told(emitter)] == [False]
    assert feed(4) == [], "fresh hosts have a warm-up of their own"


def test_every_check_has_its_threshold_and_its_hint() -> None:
    assert len({c.reading for c in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert THRESHOLDS[check.threshold].hint


def test_checkpoint_whose_rows_mean_other_checks_is_refused() -> None:
    saved = detector(Emitter()).state_dict()
    with pytest.raises(CheckpointError, match="anomalies have layout 1, this version reads 2"):
        detector(Emitter()).load_state_dict(saved | {"layout": torch.tensor(1)})
