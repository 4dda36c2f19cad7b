"""Every kind of anomaly: a fault goes in, is raised for the right source, and clears after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.events import LogLine
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.telemetry.anomalies import CHECKS, Readings
from esper_overwatch.trainer.telemetry.signal_values import MIN_EPISODES
from esper_overwatch.trainer.telemetry.timer import PhaseTimes

from .rig import EPISODE, Rig, healthy_update, machine

SICK = 2
"""The env that faults are put into."""
HEAD = HEAD_NAMES[2]
WARM = EPISODE + 10
"""Epochs before a fault: averages are warm, the second episode's seeds are six epochs old."""


@dataclass(frozen=True)
class Injection:
    """How to bring a fault about in one epoch or update, and by whose name it should be raised."""

    source: str
    inject: Callable[[Rig], None]
    heal: Callable[[Rig], None] = Rig.run_epoch
    epochs: int = 6


def signal(name: str, value: float, *, slot: int | None = None) -> Callable[[Rig], None]:
    def fault(measurements: Measurements) -> None:
        tensor = getattr(measurements, name)
        if slot is None:
            tensor[SICK] = value
        else:
            tensor[SICK, slot] = value

    return lambda rig: rig.run_epoch(fault)


def credited(accuracy: float, contribution: float) -> Callable[[Rig], None]:
    """An env with that accuracy, whose seed is credited with so much of it."""

    def fault(measurements: Measurements) -> None:
        measurements.val_accuracy[SICK] = accuracy
        measurements.contribution[SICK, 0] = contribution

    return lambda rig: rig.run_epoch(fault)


def updated(**changes: object) -> Callable[[Rig], None]:
    return lambda rig: rig.update(**changes)


def heads(name: str, value: float) -> Callable[[Rig], None]:
    values = getattr(healthy_update(), name)
    values[HEAD_NAMES.index(HEAD)] = value
    return lambda rig: rig.update(**{name: values})


def used(share: float) -> Callable[[Rig], None]:
    def run(rig: Rig) -> None:
        rig.recorder.record_sample(machine(share))
        rig.run_epoch()

    return run


def skipped(steps: int) -> Callable[[Rig], None]:
    """Of the twelve of an epoch."""

    def run(rig: Rig) -> None:
        rig.skipped[SICK] = steps
        rig.run_epoch()

    return run


def compared(sign: float) -> Callable[[Rig], None]:
    """A round whose returns follow the test accuracy, or its opposite; several where it is the first."""

    def run(rig: Rig) -> None:
        first = rig.gain.std() == 0
        rig.gain = torch.linspace(0.0, 0.3, rig.n)
        for _ in range(MIN_EPISODES // rig.n if first else 1):
            rig.begin_round()
            rig.decide()
            rig.train()
            rig.recorder.finish_round(PhaseTimes(1.0), 0.5 + sign * rig.gain.numpy())

    return run


def overflow(rig: Rig) -> None:
    for _ in range(5000):
        rig.emitter.emit(LogLine(level="INFO", logger="test", message="flood"))
    rig.run_epoch()


ENV, SEED = f"env{SICK:02d}", f"env{SICK:02d}.r0c0"
EPOCH, UPDATE = Rig.run_epoch, Rig.update
INJECTIONS: dict[str, Injection] = {
    "env.loss_nonfinite": Injection(ENV, signal("train_loss", float("nan"))),
    "env.gradient_nonfinite": Injection(ENV, signal("host_grad_norm", float("nan"))),
    "env.gradient_exploding": Injection(ENV, signal("host_grad_norm", 50.0)),
    "env.gradient_vanishing": Injection(ENV, signal("host_grad_norm", 1e-9)),
    "env.gradient_health": Injection(ENV, signal("host_health", 0.2)),
    "env.norm_drift": Injection(ENV, signal("host_grad_norm", 3.0)),
    "env.health_drift": Injection(ENV, signal("host_health", 0.4)),
    "env.stalled": Injection(ENV, signal("val_accuracy", 0.1), epochs=13),
    "env.degraded": Injection(ENV, signal("val_accuracy", 0.05)),
    "seed.reward_hacking": Injection(SEED, credited(accuracy=0.25, contribution=0.8)),
    "seed.gradient_nonfinite": Injection(SEED, signal("seed_grad_norm", float("inf"), slot=0)),
    "seed.gradient_exploding": Injection(SEED, signal("seed_grad_norm", 5000.0, slot=0)),
    "seed.gradient_vanishing": Injection(SEED, signal("seed_grad_norm", 0.0, slot=0)),
    "seed.gradient_health": Injection(SEED, signal("seed_health", 0.0, slot=0)),
    "seed.norm_drift": Injection(SEED, signal("seed_grad_norm", 2.0, slot=0)),
    "seed.health_drift": Injection(SEED, signal("seed_health", 0.3, slot=0)),
    "policy.nonfinite": Injection("policy", updated(skipped_nonfinite=1), UPDATE),
    "policy.kl_spike": Injection("policy", updated(approx_kl=0.2), UPDATE),
    "policy.clip_fraction": Injection("policy", updated(clip_fraction=0.6), UPDATE),
    "policy.ratio_explosion": Injection("policy", updated(ratio_max=12.0), UPDATE),
    "policy.ratio_collapse": Injection("policy", updated(ratio_min=0.01), UPDATE),
    "policy.entropy_collapse": Injection("policy", updated(entropy=0.02), UPDATE),
    "policy.gradient_exploding": Injection("policy", updated(grad_norm=40.0), UPDATE),
    "policy.norm_drift": Injection("policy", updated(grad_norm=3.0), UPDATE),
    "policy.lstm_saturated": Injection("policy", updated(lstm_c_rms=8.0), UPDATE),
    "policy.lstm_dead": Injection("policy", updated(lstm_h_rms=1e-7), UPDATE),
    "policy.low_return_variance": Injection("policy", updated(return_std=0.0), UPDATE),
    "policy.return_divergence": Injection("policy", compared(-1.0), compared(1.0)),
    "head.entropy_collapse": Injection(f"policy.{HEAD}", heads("head_entropy", 0.01), UPDATE),
    "head.norm_drift": Injection(f"policy.{HEAD}", heads("head_grad_norm", 2.0), UPDATE),
    "critic.value_collapse": Injection("critic", updated(explained_variance=-2.0), UPDATE),
    "critic.value_error": Injection("critic", updated(value_nrmse=3.0), UPDATE),
    "critic.norm_drift": Injection("critic", updated(critic_grad_norm=5.0), UPDATE),
    "system.slow_update": Injection("system", updated(seconds=9.0), UPDATE),
    "env.fp16_overflow": Injection(ENV, skipped(6), skipped(0)),
    "system.memory": Injection("system", used(0.95), used(0.3)),
    "system.slow_epochs": Injection("system", lambda rig: rig.run_epoch(seconds=20.0)),
    "telemetry.queue_drops": Injection("telemetry", overflow),
    "telemetry.share": Injection("telemetry", lambda rig: rig.run_epoch(telemetry=0.09)),
}


def warmed_up() -> Rig:
    rig = Rig(rounds=1000)
    for _ in range(WARM):
        rig.run_epoch()
        rig.update()
    assert rig.take("anomaly") == []
    return rig


def test_every_check_has_an_injection() -> None:
    assert set(INJECTIONS) == {check.reading for check in CHECKS}


@pytest.mark.parametrize("state", ["lstm_h_rms", "lstm_c_rms"])
def test_nan_in_the_state_of_the_lstm_is_raised(state: str) -> None:
    rig = warmed_up()
    updated(**{state: float("nan")})(rig)
    (event,) = [e for e in rig.take("anomaly") if e.data.kind == "nonfinite"]
    assert (event.data.source, event.data.active, event.data.value) == ("policy", True, 1.0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.reading)
def test_raised_attributed_and_cleared(check: object) -> None:
    reading, kind = check.reading, check.kind  # type: ignore[attr-defined]
    threshold = THRESHOLDS[check.threshold]  # type: ignore[attr-defined]
    injection = INJECTIONS[reading]
    rig = warmed_up()
    raised_at = None
    for epoch in range(1, injection.epochs + 1):
        injection.inject(rig)
        raised = [e for e in rig.take("anomaly") if e.data.kind == kind]
        if raised and raised_at is None:
            raised_at = epoch
            (event,) = raised
    assert raised_at is not None, f"{reading} was not raised"
    if kind != "stalled":  # which counts epochs itself
        assert raised_at == threshold.raise_after
    assert event.data.source == injection.source
    assert event.data.active
    assert event.data.hint == threshold.hint
    assert event.data.pattern == ("credit_beyond_gain" if kind == "reward_hacking" else "")
    assert event.ctx.env == (SICK if injection.source.startswith("env") else None)

    cleared = []
    for _ in range(EPISODE):
        injection.heal(rig)
        cleared += [e for e in rig.take("anomaly") if e.data.kind == kind and not e.data.active]
        if cleared:
            break
    assert [e.data.source for e in cleared] == [injection.source]


@pytest.mark.parametrize(
    ("accuracy", "contribution", "severity", "pattern"),
    [
        (0.5, 0.999, None, ""),  # a gain of 0.2, times 4.995
        (0.5, 1.0, "warning", "credit_beyond_gain"),
        (0.4, 0.999, "warning", "credit_beyond_gain"),  # a gain of 0.1, times 9.99
        (0.4, 1.0, "critical", "credit_beyond_gain"),
        (0.29, 0.15, "warning", "credit_without_gain"),  # of no gain 0.02 are reckoned
        (0.2, 0.25, "critical", "credit_without_gain"),
        (0.2, 0.099, None, ""),  # too small a contribution to speak of
    ],
)
def test_credit_beyond_what_an_env_gained_is_told(
    accuracy: float, contribution: float, severity: str | None, pattern: str
) -> None:
    rig = Rig()
    credited(accuracy=0.3, contribution=0.0)(rig)
    for _ in range(THRESHOLDS["credit"].raise_after - 1):
        credited(accuracy + 1e-6, contribution + 1e-5 * (severity is not None))(rig)
        assert [e for e in rig.take("anomaly") if e.data.kind == "reward_hacking"] == []
    credited(accuracy + 1e-6, contribution + 1e-5 * (severity is not None))(rig)
    told = [e.data for e in rig.take("anomaly") if e.data.kind == "reward_hacking"]
    assert [(a.severity, a.pattern, a.source) for a in told] == (
        [(severity, pattern, SEED)] if severity else []
    )
    for anomaly in told:
        assert anomaly.threshold == (10.0 if severity == "critical" else 5.0)
        gain = max(accuracy - 0.3, 0.02)
        assert anomaly.value == pytest.approx(contribution / gain, rel=1e-3)


def test_a_slow_machine_is_told_by_its_own_usual_time() -> None:
    """Whatever a step takes on this machine is usual; only what differs from that by far is told."""
    slow = Rig()
    slow.run_epoch()
    for steps in (16, 5, 8, 16, 3, 12, 16, 4):
        slow.update(seconds=4.0 * steps, minibatches=steps)
    assert slow.take("anomaly") == [], "64 s for an update of 16 steps, always"


def test_what_the_machine_does_escalates_nothing() -> None:
    rig = Rig(escalate_on="warning")
    for _ in range(EPISODE):
        rig.run_epoch()
    for seconds in (*[0.2] * 8, 60.0, 60.0, 60.0):
        rig.update(seconds=seconds)
    rig.recorder.record_sample(machine(0.99))
    for _ in range(6):
        rig.run_epoch(seconds=50.0, telemetry=0.09)
    raised = rig.recorder.take_raised()
    assert {a.kind for a, _ in raised} >= {"slow_update", "slow_epochs", "memory", "share"}
    rig.plan.escalate_anomalies(raised)
    assert rig.plan.level == "NORMAL"
    assert rig.take("telemetry.level") == []


@pytest.mark.parametrize(
    ("target", "kl", "severity"),
    [
        (0.01, 0.02, None),
        (0.01, 0.04, "warning"),
        (0.1, 0.2, None),
        (0.1, 0.4, "warning"),
        (0.001, 0.01, "critical"),
        (0.0, 0.04, "warning"),
    ],
)
def test_kl_limits_follow_the_target(target: float, kl: float, severity: str | None) -> None:
    rig = Rig()
    rig.run_epoch()
    rig.take()
    rig.update(approx_kl=kl, target_kl=target)
    assert [e.data.severity for e in rig.take("anomaly")] == ([severity] if severity else [])


def test_checkpoint_without_the_newest_check_is_read() -> None:
    rig, resumed = warmed_up(), Rig(rounds=1000)
    for _ in range(3):
        rig.run_epoch(lambda measurements: measurements.host_grad_norm[SICK].fill_(30.0))
    state = rig.recorder.state_dict()
    newest = rig.n * rig.s
    state["anomalies"] = {
        name: rows if name == "layout" else rows[:-newest] for name, rows in state["anomalies"].items()
    }
    resumed.recorder.load_state_dict(state)
    assert resumed.recorder._anomalies.active == rig.recorder._anomalies.active > 0


def test_only_the_sick_env_is_named() -> None:
    rig = warmed_up()
    for _ in range(5):
        rig.run_epoch(lambda measurements: measurements.host_grad_norm[SICK].fill_(30.0))
    assert {e.data.source for e in rig.take("anomaly")} == {ENV}


def fed_readings(rig: Rig) -> set[str]:
    """The readings of which the rig's checks get a value, from now on."""
    fed: set[str] = set()
    detector = rig.recorder._anomalies
    check_all = detector.check_all

    def watched(readings: Readings, **limits: Any) -> None:
        fed.update(name for name, values in readings.items() if not np.isnan(values).all())
        check_all(readings, **limits)

    detector.check_all = watched  # type: ignore[method-assign]
    return fed


@pytest.mark.slow
def test_no_false_alarm_in_healthy_rounds() -> None:
    rig = Rig(envs=4)
    fed = fed_readings(rig)
    rig.gain = torch.linspace(0.24, 0.26, rig.n)
    for _ in range(32):  # the policy's averages and its usual drift need 30 updates
        for _ in range(EPISODE):
            rig.recorder.record_sample(machine())
            rig.run_epoch()
        rig.update()
        noise = rig.random.normal(0.0, 0.1, rig.n)
        rig.recorder.finish_round(PhaseTimes(1.0), EPISODE * rig.gain.numpy() - 5.0 + noise)
    assert rig.take("anomaly") == []
    assert fed == {check.reading for check in CHECKS}


def test_a_check_that_nobody_feeds_is_found_out() -> None:
    rig = Rig()
    fed = fed_readings(rig)
    rig.run_epoch()
    assert "env.stalled" in fed
    assert not fed & {"policy.kl_spike", "env.norm_drift"}, "no update yet, and drift is warming up"


def test_a_flat_return_does_not_accuse_the_critic() -> None:
    rig = warmed_up()
    rig.update(return_std=1e-9, explained_variance=-50.0)
    assert [e.data.kind for e in rig.take("anomaly")] == ["low_return_variance"]


def fall_ill(measurements: Measurements) -> None:
    """Gradients vanish in the sick env and in its seed, and its loss is not finite."""
    measurements.host_grad_norm[SICK] = measurements.seed_grad_norm[SICK, 0] = 1e-9
    measurements.train_loss[SICK] = float("nan")


def told(rig: Rig) -> list[tuple[str, str, bool]]:
    return [(e.data.kind, e.data.source, e.data.active) for e in rig.take("anomaly")]


def test_gradient_anomalies_end_with_the_escalation_that_measured_them() -> None:
    """Before, they stayed raised for ever: an absent reading clears nothing."""
    rig = Rig(level="MINIMAL")
    rig.run_epoch()
    rig.plan.escalate("NORMAL", 4, env=SICK, reason="test")
    for _ in range(4):
        rig.run_epoch(fall_ill)
    raised = {(kind, source) for kind, source, active in told(rig) if active}
    assert raised == {("loss_nonfinite", ENV), ("gradient_vanishing", ENV), ("gradient_vanishing", SEED)}
    rig.run_epoch(fall_ill)
    assert told(rig) == [("gradient_vanishing", ENV, False), ("gradient_vanishing", SEED, False)]
    assert rig.recorder._anomalies.active == 1, "the loss is measured as before"


def test_drift_of_the_policy_ends_with_its_level() -> None:
    rig, resumed = warmed_up(), Rig(level="MINIMAL", rounds=1000)
    norms = healthy_update().head_grad_norm
    norms[HEAD_NAMES.index(HEAD)] = 2.0
    for _ in range(3):
        rig.update(grad_norm=3.0, head_grad_norm=norms, critic_grad_norm=5.0, entropy=0.0)
    raised = {(kind, source) for kind, source, active in told(rig) if active}
    drifted = {("norm_drift", source) for source in ("policy", f"policy.{HEAD}", "critic")}
    assert raised == drifted | {("entropy_collapse", "policy")}
    resumed.recorder.load_state_dict(rig.recorder.state_dict())
    resumed.update(entropy=0.0)
    assert set(told(resumed)) == {(*drift, False) for drift in drifted}
    assert resumed.recorder._anomalies.active == 1, "entropy is measured at every level"


def test_resume_at_lower_level_clears_what_it_does_not_measure() -> None:
    rig, resumed = Rig(), Rig(level="MINIMAL")
    for _ in range(4):
        rig.run_epoch(fall_ill)
    resumed.recorder.load_state_dict(rig.recorder.state_dict())
    resumed.recorder.begin_epoch()
    assert told(resumed) == [("gradient_vanishing", ENV, False), ("gradient_vanishing", SEED, False)]
