"""Anomalies escalate their env, not too often and never for more than a share of a round."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.events import Anomaly, TelemetryLevel
from esper_overwatch.trainer.config.service_options import TelemetryConfig
from esper_overwatch.trainer.telemetry.collection.escalation import COOLDOWN_FACTOR, Escalations
from esper_overwatch.trainer.telemetry.collection.levels import Levels

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
        escalations.on_epoch_end()
    return told


def test_escalated_env_is_left_alone_afterwards() -> None:
    levels, escalations = made(escalate_share=1.0)
    (told,) = escalations.on_anomalies([(anomaly("env01"), 1)])
    assert (told.level, told.env, told.epochs, told.reason) == ("DEBUG", 1, 5, "kl_spike of env01")
    assert levels.debug_envs.tolist() == [False, True, False]
    assert [e.env for e in pass_epochs(levels, escalations, 5)] == [1]
    assert not levels.debug_envs.any()
    assert escalations.on_anomalies([(anomaly("env01"), 1)]) == []
    assert [e.env for e in escalations.on_anomalies([(anomaly("env02"), 2)])] == [2]
    pass_epochs(levels, escalations, COOLDOWN_FACTOR * 5)
    assert [e.env for e in escalations.on_anomalies([(anomaly("env01"), 1)])] == [1]


def test_without_an_env_all_are_looked_at() -> None:
    levels, escalations = made()
    escalations.on_anomalies([(anomaly("policy"), None)])
    assert levels.debug_envs.all()


def test_env_already_escalated_for_as_long_is_not_escalated_again() -> None:
    levels, escalations = made(escalate_share=1.0)
    levels.escalate("DEBUG", 6, reason="an operator")
    assert escalations.on_anomalies([(anomaly("env01"), 1), (anomaly("policy"), None)]) == []
    pass_epochs(levels, escalations, 2)
    (told,) = escalations.on_anomalies([(anomaly("env01"), 1)])
    assert (told.level, told.previous, told.env, told.epochs) == ("DEBUG", "DEBUG", 1, 5)
    assert levels.lasts("DEBUG", 1) == 5
    assert levels.lasts("DEBUG", 0) == levels.lasts("DEBUG", None) == 4


def test_mild_and_machine_anomalies_do_not_escalate() -> None:
    levels, escalations = made(escalate_on="critical")
    assert escalations.on_anomalies([(anomaly(severity="warning"), 0), (anomaly("system"), None)]) == []
    levels, escalations = made(escalate_on="warning")
    assert len(escalations.on_anomalies([(anomaly(severity="warning"), 0)])) == 1
    levels, escalations = made(escalate_on="off")
    assert escalations.on_anomalies([(anomaly(), 0)]) == []
    assert not levels.escalated
    debug = Levels("DEBUG", ENVS)
    assert (
        Escalations(debug, TelemetryConfig(debug_every=1), EPISODE, ENVS).on_anomalies([(anomaly(), 0)]) == []
    )


@given(
    share=st.sampled_from([0.0, 0.1, 0.25, 1.0]),
    epochs=st.integers(1, 9),
    stream=st.lists(st.sets(st.none() | st.integers(0, ENVS - 1)), min_size=48, max_size=48),
)
@pytest.mark.slow
def test_anomaly_storm_stays_within_share_of_round(
    share: float, epochs: int, stream: list[set[int | None]]
) -> None:
    levels, escalations = made(escalate_share=share, escalate_epochs=epochs)
    for round_ in (1, 2):
        escalations.on_round_begin(round_)
        spent = 0
        for subjects in stream[(round_ - 1) * EPISODE : round_ * EPISODE]:
            spent += bool(levels.debug_envs.any())
            pass_epochs(levels, escalations, 1)
            escalations.on_anomalies([(anomaly(), env) for env in subjects])
        assert spent <= max(int(share * EPISODE), 0)


def test_the_calendar() -> None:
    levels, escalations = made(debug_every=3, debug_epochs=2)
    seen = []
    for round_ in range(1, 8):
        told = escalations.on_round_begin(round_)
        assert all(e.reason == "telemetry.debug_every" for e in told)
        seen.append(bool(told))
        assert levels.debug_envs.all() == bool(told)
        pass_epochs(levels, escalations, EPISODE)
    assert seen == [True, False, False, True, False, False, True]


def test_it_goes_on_where_it_was() -> None:
    _, escalations = made()
    escalations.on_anomalies([(anomaly("env01"), 1)])
    _, other = made()
    other.load_state_dict(escalations.state_dict())
    assert other.on_anomalies([(anomaly("env01"), 1)]) == []
    assert other.state_dict() == escalations.state_dict()
