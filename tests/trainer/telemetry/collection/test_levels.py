"""Escalations are in force for exactly the epochs asked for, whatever else is asked meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from esper_overwatch.protocol.messages.vocabulary import LEVELS
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.telemetry.collection.levels import LevelCode, Levels

ENVS = 3


class Told(Levels):
    """Keeps the events of the changes."""

    def __init__(self, default: Any, envs: int = ENVS) -> None:
        self.emitter = Emitter()
        super().__init__(self.emitter, default, envs)

    def take(self) -> list[Any]:
        return [item.event for item in self.emitter.drain(1000)]

    def tick_and_take(self) -> list[Any]:
        self.tick()
        return self.take()


def test_one_escalation() -> None:
    levels = Told("NORMAL")
    levels.escalate("DEBUG", 3, reason="by me", command="c1")
    (raised,) = levels.take()
    assert (raised.level, raised.previous, raised.epochs, raised.command) == ("DEBUG", "NORMAL", 3, "c1")
    seen, ended = [], []
    for _ in range(5):
        seen.append((levels.level, levels.epochs_left("c1")))
        levels.tick()
        ended.append(levels.take_ended())
    assert seen == [("DEBUG", 3), ("DEBUG", 2), ("DEBUG", 1), ("NORMAL", None), ("NORMAL", None)]
    assert ended == [{}, {}, {"c1": "NORMAL"}, {}, {}]
    (fell,) = levels.take()
    assert (fell.level, fell.previous, fell.epochs, fell.command) == ("NORMAL", "DEBUG", None, "c1")


def test_one_env_only() -> None:
    levels = Told("MINIMAL")
    levels.escalate("DEBUG", 1, env=1, reason="look")
    (raised,) = levels.take()
    assert (raised.env, raised.previous) == (1, "MINIMAL")
    minimal, debug = LevelCode.MINIMAL, LevelCode.DEBUG
    assert levels.level_by_env.tolist() == [minimal, debug, minimal]
    assert levels.level == "DEBUG"
    (fell,) = levels.tick_and_take()
    assert (fell.env, fell.level) == (1, "MINIMAL")
    assert levels.level == "MINIMAL"


def test_the_higher_one_wins_and_each_ends_on_its_own() -> None:
    levels = Told("OFF")
    levels.escalate("NORMAL", 4, reason="a", command="a")
    levels.escalate("DEBUG", 2, reason="b", command="b")
    levels.take()
    seen, told = [], []
    for _ in range(5):
        seen.append(levels.level)
        told.append([(e.command, e.previous, e.level) for e in levels.tick_and_take()])
    assert seen == ["DEBUG", "DEBUG", "NORMAL", "NORMAL", "OFF"]
    assert told == [[], [("b", "DEBUG", "NORMAL")], [], [("a", "NORMAL", "OFF")], []]


@pytest.mark.parametrize(
    ("level", "epochs", "env", "says"),
    [("DEBUG", 1, 3, "envs 0 to 2"), ("NORMAL", 1, None, "all the time"), ("DEBUG", 0, None, "at least 1")],
)
def test_what_makes_no_sense_is_refused(level: Any, epochs: int, env: int | None, says: str) -> None:
    levels = Told("NORMAL")
    with pytest.raises(ValueError, match=says):
        levels.escalate(level, epochs, env=env, reason="")
    assert levels.tick_and_take() == []


class LevelMachine(RuleBasedStateMachine):
    """Against a ledger of (first epoch, last epoch, scope, level)."""

    @initialize(default=st.sampled_from(LEVELS[:3]))
    def begin(self, default: Any) -> None:
        self.default = default
        self.levels = Told(default)
        self.ledger: list[tuple[int, int, int | None, int, str]] = []
        self.epoch = 0

    @rule(level=st.sampled_from(LEVELS), epochs=st.integers(1, 6), env=st.none() | st.integers(0, ENVS - 1))
    def escalate(self, level: Any, epochs: int, env: int | None) -> None:
        if LevelCode[level] <= LevelCode[self.default]:
            with pytest.raises(ValueError, match="all the time"):
                self.levels.escalate(level, epochs, env=env, reason="")
            return
        command = f"c{len(self.ledger)}"
        self.levels.escalate(level, epochs, env=env, reason="", command=command)
        (event,) = self.levels.take()
        self.ledger.append((self.epoch, self.epoch + epochs, env, LevelCode[level], command))
        assert LevelCode[event.level] >= LevelCode[level]

    @rule()
    def finish_epoch(self) -> None:
        ended = {e.command for e in self.levels.tick_and_take()}
        self.epoch += 1
        assert ended == {command for _, end, _, _, command in self.ledger if end == self.epoch}

    @rule()
    def save_and_load(self) -> None:
        state = self.levels.state_dict()
        self.levels = Told(self.default)
        self.levels.load_state_dict(state)

    @invariant()
    def in_force_exactly(self) -> None:
        expected = np.full(ENVS, LevelCode[self.default])
        for begin, end, env, code, _ in self.ledger:
            if begin <= self.epoch < end:
                rows = slice(None) if env is None else env
                expected[rows] = np.maximum(expected[rows], code)
        assert self.levels.level_by_env.tolist() == expected.tolist()
        assert LevelCode[self.levels.level] == expected.max()


TestLevelMachine = LevelMachine.TestCase


@given(st.integers(1, 40))
def test_any_number_of_epochs(epochs: int) -> None:
    levels = Told("NORMAL", 1)
    levels.escalate("DEBUG", epochs, reason="")
    count = 0
    while levels.level == "DEBUG":
        count += 1
        levels.tick()
    assert count == epochs
