"""The coefficients of the loss follow their formulas, round by round, and survive a resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.coefficients import Coefficients, entropy_coefficient
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics

from .garden import learn, make, play


def test_defaults_are_constant() -> None:
    cfg = PPOConfig()
    for updates in (0, 1, 10**6):
        assert entropy_coefficient(cfg, updates) == cfg.entropy_coefficient
        assert Coefficients.of(cfg, updates).value.item() == cfg.value_coefficient


def test_entropy_moves_linearly_to_its_end_and_stays() -> None:
    cfg = PPOConfig(entropy_coefficient=0.05, entropy_final=0.01, entropy_rounds=4)
    found = [entropy_coefficient(cfg, k) for k in range(7)]
    assert found == pytest.approx([0.05, 0.04, 0.03, 0.02, 0.01, 0.01, 0.01])
    assert found[4:] == [0.01] * 3


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.integers(0, 2 * 10**6))
def test_entropy_coefficient_never_leaves_its_range(
    first: float, final: float, rounds: int, updates: int
) -> None:
    cfg = PPOConfig(entropy_coefficient=first, entropy_final=final, entropy_rounds=rounds)
    found = entropy_coefficient(cfg, updates)
    assert min(first, final) <= found <= max(first, final)
    later = entropy_coefficient(cfg, updates + 1)
    assert abs(final - later) <= abs(final - found) + 1e-15
    assert entropy_coefficient(cfg, rounds) == final


SCHEDULES = ("envs.count=4", "episode_epochs=6", "policy.hidden=16", "ppo.entropy_rounds=3", "ppo.epochs=1")


def told(statistics: UpdateStatistics) -> tuple[float, float]:
    return statistics.entropy_coefficient, statistics.policy_loss


def test_schedules_are_told_and_go_on_after_resume() -> None:
    cfg = load(sets=SCHEDULES)
    agent, reward = make(cfg)
    course = []
    saved = None
    for round in (1, 2, 3, 4):
        if round == 3:
            saved = agent.state_dict()
            saved = torch.utils._pytree.tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, saved)
        rollout, _ = play(agent, reward, round)
        course.append(told(learn(agent, rollout)))
    assert [row[0] for row in course] == [entropy_coefficient(cfg.ppo, k) for k in range(4)]
    resumed, other_reward = make(cfg)
    assert saved is not None
    resumed.load_state_dict(saved)
    again = []
    for round in (3, 4):
        rollout, _ = play(resumed, other_reward, round)
        again.append(told(learn(resumed, rollout)))
    assert again == course[2:]
