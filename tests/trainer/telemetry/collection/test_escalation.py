"""Anomalies escalate their env, not too often and never for more than a share of a round."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.events import Anomaly, TelemetryLevel
from trainer.config import TelemetryConfig
from trainer.telemetry.escalation import REST, Escalations
from trainer.telemetry.levels import Levels
from trainer.telemetry.stride import Stride

from .rig import Rig

ENVS, EPISODE = 3, 24


def anomaly(source: str = "policy", severity: Any = "critical") -> Anomaly:
    return Anomaly(kind="kl_spike", source=source, severity=severity, active=True)


def made(**config: Any) -> tuple[Levels, Escalations]:
    levels = Levels("NORMAL", ENVS)
    return levels, Escalations(levels, TelemetryConfig(**config), EPISODE, ENVS)


def pass_epochs(levels: Levels, escalations: Escalations, epochs: int) -> list[TelemetryLevel]:
    told = []
    for _ in range(epochs):
        told += levels.tick()
        escalations.epoch_finished()
    return told


def test_an_env_is_looked_at_for_so_many_epochs_and_then_left_alone() -> None:
    levels, escalations = made(escalate_share=1.0)
    (told,) = escalations.raised([(anomaly("env01"), 1)])
    assert (told.level, told.env, told.epochs, told.reason) == ("DEBUG", 1, 5, "kl_spike of env01")
    assert levels.debug_envs.tolist() == [False, True, False]
    assert [e.env for e in pass_epochs(levels, escalations, 5)] == [1]
    assert not levels.debug_envs.any()
    assert escalations.raised([(anomaly("env01"), 1)]) == []
    assert [e.env for e in escalations.raised([(anomaly("env02"), 2)])] == [2]
    pass_epochs(levels, escalations, REST * 5)
    assert [e.env for e in escalations.raised([(anomaly("env01"), 1)])] == [1]


def test_without_an_env_all_are_looked_at() -> None:
    levels, escalations = made()
    escalations.raised([(anomaly("policy"), None)])
    assert levels.debug_envs.all()


def test_what_is_being_looked_at_for_as_long_anyway_is_not_asked_for_again() -> None:
    levels, escalations = made(escalate_share=1.0)
    levels.escalate("DEBUG", 6, reason="an operator")
    assert escalations.raised([(anomaly("env01"), 1), (anomaly("policy"), None)]) == []
    pass_epochs(levels, escalations, 2)
    (told,) = escalations.raised([(anomaly("env01"), 1)])
    assert (told.level, told.previous, told.env, told.epochs) == ("DEBUG", "DEBUG", 1, 5)
    assert levels.lasts("DEBUG", 1) == 5
    assert levels.lasts("DEBUG", 0) == levels.lasts("DEBUG", None) == 4


def test_what_is_not_severe_enough_or_of_the_machine_is_passed() -> None:
    levels, escalations = made()
    assert escalations.raised([(anomaly(severity="warning"), 0), (anomaly("system"), None)]) == []
    levels, escalations = made(escalate_on="warning")
    assert len(escalations.raised([(anomaly(severity="warning"), 0)])) == 1
    levels, escalations = made(escalate_on="off")
    assert escalations.raised([(anomaly(), 0)]) == []
    assert not levels.escalated
    debug = Levels("DEBUG", ENVS)
    assert Escalations(debug, TelemetryConfig(debug_every=1), EPISODE, ENVS).raised([(anomaly(), 0)]) == []


@given(
    share=st.sampled_from([0.0, 0.1, 0.25, 1.0]),
    epochs=st.integers(1, 9),
    stream=st.lists(st.sets(st.none() | st.integers(0, ENVS - 1)), min_size=48, max_size=48),
)
def test_a_storm_never_costs_more_than_the_share_of_a_round(
    share: float, epochs: int, stream: list[set[int | None]]
) -> None:
    levels, escalations = made(escalate_share=share, escalate_epochs=epochs)
    for round_ in (1, 2):
        escalations.round_begins(round_)
        spent = 0
        for subjects in stream[(round_ - 1) * EPISODE : round_ * EPISODE]:
            spent += bool(levels.debug_envs.any())
            pass_epochs(levels, escalations, 1)
            escalations.raised([(anomaly(), env) for env in subjects])
        assert spent <= max(int(share * EPISODE), 0)


def test_the_calendar() -> None:
    levels, escalations = made(debug_every=3, debug_epochs=2)
    seen = []
    for round_ in range(1, 8):
        told = escalations.round_begins(round_)
        assert all(e.reason == "telemetry.debug_every" for e in told)
        seen.append(bool(told))
        assert levels.debug_envs.all() == bool(told)
        pass_epochs(levels, escalations, EPISODE)
    assert seen == [True, False, False, True, False, False, True]


def test_it_goes_on_where_it_was() -> None:
    _, escalations = made()
    escalations.raised([(anomaly("env01"), 1)])
    _, other = made()
    other.load_state_dict(escalations.state_dict())
    assert other.raised([(anomaly("env01"), 1)]) == []
    assert other.state_dict() == escalations.state_dict()


def test_the_recorder_hands_over_what_was_raised_once_and_not_what_got_better() -> None:
    rig = Rig()
    for _ in range(3):
        rig.run_epoch()
    assert rig.recorder.raised() == []

    def ill(signals: Any) -> None:
        signals.train_loss[2] = float("nan")

    for _ in range(4):
        rig.run_epoch(ill)
    raised = rig.recorder.raised()
    assert {(a.source, env) for a, env in raised} == {("env02", 2)}
    assert all(a.active for a, _ in raised)
    for _ in range(30):
        rig.run_epoch()
    assert [a.kind for a, _ in rig.recorder.raised() if a.kind == raised[0][0].kind] == []


def test_a_stride_thins_out_drift_but_not_the_escalated_epochs() -> None:
    rig = Rig()
    rig.recorder = type(rig.recorder)(rig.emitter, rig.recorder._shape, rig.levels, Stride(4))
    collected = []
    for epoch in range(16):
        if epoch == 9:
            rig.levels.escalate("DEBUG", 3, env=1, reason="test")
        collected.append(rig.recorder.layer_envs.tolist() if rig.levels.escalated else None)
        rig.run_epoch()
    drift = [e.ctx.epoch for e in rig.take("drift")]
    assert drift == [1, 5, 9, 10, 11, 12, 13]
    assert [c for c in collected if c] == [[False, True, False, False]] * 3
