"""Every kind of anomaly: a fault goes in, is raised for the right source, and clears after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, SEVERITY_RANK
from esper_overwatch.protocol.server.incidents import LINGER_EPOCHS
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.telemetry.anomalies import CHECKS, Readings
from esper_overwatch.trainer.telemetry.timer import PhaseTimes

from .faults import ENV, HEAD, INJECTIONS, SEED, SICK, credited, updated, warmed_up
from .rig import EPISODE, Rig, healthy_update, machine


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
        events = rig.take()
        raised = [e for e in events if e.type == "anomaly" and e.data.kind == kind and e.data.active]
        if raised:
            raised_at = epoch
            event = next(e for e in raised if e.data.source == injection.source)
            incident = next(e.data for e in events if e.type == "incident" and kind in e.data.kinds)
            break
    assert raised_at is not None, f"{reading} was not raised"
    if reading not in ("env.stalled", "env.rollback"):  # which count themselves
        assert raised_at == threshold.raise_after
    assert incident.active
    assert SEVERITY_RANK[incident.severity] >= SEVERITY_RANK[event.data.severity]
    assert event.data.source == injection.source
    assert event.data.active
    assert event.data.hint == threshold.hint
    assert event.data.pattern == ("credit_beyond_gain" if kind == "reward_hacking" else "")
    assert event.ctx.env == (SICK if injection.source.startswith("env") else None)

    cleared, over = [], []
    for _ in range(2 * EPISODE + LINGER_EPOCHS):
        injection.heal(rig)
        rig.run_epoch()  # the clock of incidents
        events = rig.take()
        cleared += [e for e in events if e.type == "anomaly" and e.data.kind == kind and not e.data.active]
        over += [e.data.id for e in events if e.type == "incident" and e.data.over]
        if incident.id in over:
            break
    assert injection.source in {e.data.source for e in cleared}
    assert incident.id in over


@pytest.mark.parametrize(
    ("accuracy", "contribution", "severity", "pattern"),
    [
        (0.5, 0.999, None, ""),  # a gain of 0.2, times 4.995
        (0.5, 1.0, "info", "credit_beyond_gain"),
        (0.4, 1.0, "info", "credit_beyond_gain"),
        (0.29, 0.15, "info", "credit_without_gain"),  # of no gain 0.02 are reckoned
        (0.2, 0.25, "info", "credit_without_gain"),
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
        assert anomaly.threshold == 5.0
        gain = max(accuracy - 0.3, 0.02)
        assert anomaly.value == pytest.approx(contribution / gain, rel=1e-3)


def test_a_slow_machine_is_told_by_its_own_usual_time() -> None:
    """Whatever a step takes on this machine is usual; only what differs from that by far is told."""
    slow = Rig()
    slow.run_epoch()
    for steps in (16, 5, 8, 16, 3, 12, 16, 4):
        slow.update(seconds=4.0 * steps, minibatches=steps)
    assert slow.take("anomaly") == [], "64 s for an update of 16 steps, always"


def test_busy_neighbours_make_no_epoch_slow() -> None:
    """Before, four busy loops beside a healthy run were told as its slow epochs."""
    rig = Rig()
    for _ in range(EPISODE):
        rig.run_epoch()
    rig.recorder.record_sample(replace(machine(), machine_cpu_percent=100.0, cpu_percent=40.0))
    for _ in range(10):
        rig.run_epoch(seconds=50.0, cpu_seconds=1.1)
    rig.update(seconds=0.2)
    assert rig.take("anomaly") == []


def test_what_the_machine_does_escalates_nothing() -> None:
    rig = Rig(escalate_on="warning")
    for _ in range(EPISODE):
        rig.run_epoch()
    for seconds in (*[0.2] * 8, 60.0, 60.0, 60.0):
        rig.update(seconds=seconds)
    for _ in range(8):
        rig.recorder.record_sample(machine(0.99))
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
        (0.001, 0.01, "warning"),
        (0.0, 0.04, "warning"),
    ],
)
def test_kl_limits_follow_the_target(target: float, kl: float, severity: str | None) -> None:
    rig = Rig()
    rig.run_epoch()
    rig.take()
    for _ in range(THRESHOLDS["kl"].raise_after):
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
    for _ in range(6):
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
    rig.plan.escalate("NORMAL", 12, env=SICK, reason="test")
    for _ in range(12):
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
    for _ in range(4):
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
    for _ in range(12):
        rig.run_epoch(fall_ill)
    resumed.recorder.load_state_dict(rig.recorder.state_dict())
    resumed.recorder.begin_epoch()
    assert told(resumed) == [("gradient_vanishing", ENV, False), ("gradient_vanishing", SEED, False)]
