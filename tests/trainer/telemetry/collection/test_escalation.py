"""Anomalies escalate their env, not too often and never for more than a share of a round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.config.service_options import TelemetryConfig
from esper_overwatch.trainer.telemetry.collection.escalation import COOLDOWN_FACTOR, Escalations
from esper_overwatch.trainer.telemetry.collection.levels import LevelCode, Levels

ENVS, EPISODE = 3, 24


def anomaly(source: str = "policy", severity: Any = "critical") -> Anomaly:
    return Anomaly(kind="kl_spike", source=source, severity=severity, active=True)


class Made(Escalations):
    """With its levels, and the events of their changes."""

    def __init__(self, **config: Any) -> None:
        self.emitter = Emitter()
        self.levels = Levels(self.emitter, config.pop("level", "NORMAL"), ENVS)
        super().__init__(self.levels, TelemetryConfig(**config), EPISODE, ENVS)

    def debug_envs(self) -> list[int]:
        return np.flatnonzero(self.levels.level_by_env == LevelCode.DEBUG).tolist()

    def take(self) -> list[Any]:
        return [item.event for item in self.emitter.drain(1000)]

    def tell(self, *anomalies: tuple[Anomaly, int | None]) -> list[Any]:
        """What follows from anomalies."""
        self.take()
        self.on_anomalies(anomalies)
        return self.take()

    def pass_epochs(self, epochs: int) -> None:
        for _ in range(epochs):
            self.levels.tick()
            self.on_epoch_end()


def test_escalated_env_is_left_alone_afterwards() -> None:
    made = Made(escalate_share=1.0)
    (told,) = made.tell((anomaly("env01"), 1))
    assert (told.level, told.env, told.epochs, told.reason) == ("DEBUG", 1, 5, "kl_spike of env01")
    assert made.debug_envs() == [1]
    made.pass_epochs(5)
    assert [e.env for e in made.take()] == [1]
    assert made.debug_envs() == []
    assert made.tell((anomaly("env01"), 1)) == []
    assert [e.env for e in made.tell((anomaly("env02"), 2))] == [2]
    made.pass_epochs(COOLDOWN_FACTOR * 5)
    assert [e.env for e in made.tell((anomaly("env01"), 1))] == [1]


def test_without_an_env_all_are_looked_at() -> None:
    made = Made()
    made.tell((anomaly("policy"), None))
    assert made.debug_envs() == [0, 1, 2]


def test_env_already_escalated_for_as_long_is_not_escalated_again() -> None:
    made = Made(escalate_share=1.0)
    made.levels.escalate("DEBUG", 6, reason="an operator")
    assert made.tell((anomaly("env01"), 1), (anomaly("policy"), None)) == []
    made.pass_epochs(2)
    (told,) = made.tell((anomaly("env01"), 1))
    assert (told.level, told.previous, told.env, told.epochs) == ("DEBUG", "DEBUG", 1, 5)
    assert made.levels.lasts("DEBUG", 1) == 5
    assert made.levels.lasts("DEBUG", 0) == made.levels.lasts("DEBUG", None) == 4


def test_mild_and_machine_anomalies_do_not_escalate() -> None:
    mild, of_machine = (anomaly(severity="warning"), 0), (anomaly("system"), None)
    assert Made(escalate_on="critical").tell(mild, of_machine) == []
    assert len(Made(escalate_on="warning").tell(mild)) == 1
    off = Made(escalate_on="off")
    assert off.tell((anomaly(), 0)) == []
    assert not off.levels.is_escalated
    assert Made(level="DEBUG", debug_every=1).tell((anomaly(), 0)) == []


@given(
    share=st.sampled_from([0.0, 0.1, 0.25, 1.0]),
    epochs=st.integers(1, 9),
    stream=st.lists(st.sets(st.none() | st.integers(0, ENVS - 1)), min_size=48, max_size=48),
)
@pytest.mark.slow
def test_anomaly_storm_stays_within_share_of_round(
    share: float, epochs: int, stream: list[set[int | None]]
) -> None:
    made = Made(escalate_share=share, escalate_epochs=epochs)
    for round_ in (1, 2):
        made.on_round_begin(round_)
        spent = 0
        for subjects in stream[(round_ - 1) * EPISODE : round_ * EPISODE]:
            spent += bool(made.debug_envs())
            made.pass_epochs(1)
            made.tell(*((anomaly(), env) for env in subjects))
        assert spent <= max(int(share * EPISODE), 0)


def test_the_calendar() -> None:
    made = Made(debug_every=3, debug_epochs=2)
    seen = []
    for round_ in range(1, 8):
        made.take()
        made.on_round_begin(round_)
        told = made.take()
        assert all(e.reason == "telemetry.debug_every" for e in told)
        seen.append(bool(told))
        assert made.debug_envs() == ([0, 1, 2] if told else [])
        made.pass_epochs(EPISODE)
    assert seen == [True, False, False, True, False, False, True]


def test_it_goes_on_where_it_was() -> None:
    made, other = Made(), Made()
    made.tell((anomaly("env01"), 1))
    other.load_state_dict(made.state_dict())
    assert other.tell((anomaly("env01"), 1)) == []
    assert other.state_dict() == made.state_dict()
