"""One plan: what is collected in an epoch, and the complete life of an escalation."""

from __future__ import annotations

from typing import Any

from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.config.service_options import TelemetryConfig
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from tests.trainer.telemetry.rig import Rig


def made(**config: Any) -> tuple[CollectionPlan, Emitter]:
    emitter = Emitter()
    return CollectionPlan(emitter, TelemetryConfig(**config), envs=3, episode_epochs=24), emitter


def told(emitter: Emitter) -> list[tuple[str, int | None, str | None]]:
    return [(e.event.level, e.event.epochs, e.event.command) for e in emitter.drain(1000)]  # type: ignore[attr-defined]


def test_cancelled_escalation_is_reported_and_not_ended() -> None:
    plan, emitter = made()
    plan.escalate("DEBUG", 9, reason="by me", command="c1")
    plan.cancel("c1", "cancelled by me")
    assert (plan.level, plan.epochs_left("c1")) == ("NORMAL", None)
    assert plan.take_ended() == {}
    assert told(emitter) == [("DEBUG", 9, "c1"), ("NORMAL", None, "c1")]


def test_fixed_interval_thins_out_layers_of_level_debug() -> None:
    plan, _ = made(level="DEBUG", stride=3)
    collected = []
    for _ in range(6):
        collected.append(bool(plan.layer_envs.any()))
        plan.record_cost(1.0, 0.1 if plan.is_due else None, 0.0)
        plan.end_epoch(())
    assert collected == [True, False, False] * 2


def test_raised_anomalies_are_taken_once() -> None:
    rig = Rig()
    for _ in range(3):
        rig.run_epoch()
    assert rig.recorder.take_raised() == []

    def ill(measurements: Any) -> None:
        measurements.train_loss[2] = float("nan")

    for _ in range(4):
        rig.run_epoch(ill)
    raised = rig.recorder.take_raised()
    assert {(a.source, env) for a, env in raised} == {("env02", 2)}
    assert all(a.active for a, _ in raised)
    for _ in range(30):
        rig.run_epoch()
    assert [a.kind for a, _ in rig.recorder.take_raised() if a.kind == raised[0][0].kind] == []


def test_a_stride_thins_out_drift_but_not_the_escalated_epochs() -> None:
    rig = Rig(stride=4)
    collected = []
    for epoch in range(16):
        if epoch == 9:
            rig.plan.escalate("DEBUG", 3, env=1, reason="test")
        collected.append(rig.plan.layer_envs.tolist() if rig.plan.level == "DEBUG" else None)
        rig.run_epoch()
    drift = [e.ctx.epoch for e in rig.take("drift")]
    assert drift == [1, 5, 9, 10, 11, 12, 13]
    assert [c for c in collected if c] == [[False, True, False, False]] * 3
