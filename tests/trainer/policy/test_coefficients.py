"""The coefficients of the loss follow their formulas, round by round, and survive a resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.config.load import ConfigError, load
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.coefficients import (
    Coefficients,
    by_head,
    entropy_coefficient,
    floors,
    sharpness,
    value_coefficient,
)
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics

from .garden import learn, make, play


def test_defaults_are_constant_and_bind_no_head() -> None:
    cfg = PPOConfig()
    for updates in (0, 1, 10**6):
        assert entropy_coefficient(cfg, updates) == cfg.entropy_coefficient
        assert value_coefficient(cfg, updates) == cfg.value_coefficient
        assert Coefficients.of(cfg, updates).floor_H is None
        assert Coefficients.of(cfg, updates).head_entropy_H.tolist() == [1.0] * len(HEAD_NAMES)


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


def test_value_loss_ramps_from_a_tenth_to_the_whole() -> None:
    cfg = PPOConfig(value_coefficient=0.5, value_warmup_rounds=10)
    found = [value_coefficient(cfg, k) for k in (0, 5, 9, 10, 11)]
    assert found == pytest.approx([0.05, 0.275, 0.455, 0.5, 0.5])


def test_logits_grow_in_the_second_half_and_stay() -> None:
    cfg = PPOConfig(sharpen_rounds=4, sharpen_factor=9.0)
    assert [sharpness(cfg, k) for k in range(7)] == pytest.approx([1, 1, 1, 3, 9, 9, 9])
    assert sharpness(PPOConfig(sharpen_factor=9.0), 10**6) == 1.0


def test_floors_fall_to_zero_exactly() -> None:
    cfg = PPOConfig(floor=("op:0.02", "alpha_curve:0.1"), floor_rounds=4)
    assert by_head(cfg.floor, 0.0) == [0.02, 0, 0, 0, 0, 0, 0, 0.1]
    assert [floors(cfg, k)[0] for k in range(6)] == pytest.approx([0.02, 0.015, 0.01, 0.005, 0.0, 0.0])
    assert floors(cfg, 4) == [0.0] * len(HEAD_NAMES)
    assert floors(PPOConfig(floor=("op:0.02",)), 10**6)[0] == 0.02


SCHEDULES = (
    "envs.count=4",
    "episode_epochs=6",
    "policy.hidden=16",
    "ppo.entropy_rounds=3",
    "ppo.value_warmup_rounds=3",
    "ppo.epochs=1",
    "ppo.floor=op:0.06,blueprint:0.03",
    "ppo.floor_rounds=3",
    "ppo.head_entropy=op:2,tempo:0",
    "ppo.sharpen_rounds=3",
)


def told(statistics: UpdateStatistics) -> tuple[object, ...]:
    return (
        statistics.entropy_coefficient,
        statistics.value_coefficient,
        *statistics.head_floor,
        *statistics.head_entropy_coefficient,
        statistics.policy_loss,
    )


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
    ppo = cfg.ppo
    for k, row in enumerate(course):
        assert row[0] == entropy_coefficient(ppo, k)
        assert row[1] == value_coefficient(ppo, k)
        assert list(row[2:10]) == floors(ppo, k)
        multiples = [2.0, 1, 1, 1, 0, 1, 1, 1]
        assert list(row[10:18]) == [entropy_coefficient(ppo, k) * multiple for multiple in multiples]
    resumed, other_reward = make(cfg)
    assert saved is not None
    resumed.load_state_dict(saved)
    again = []
    for round in (3, 4):
        rollout, _ = play(resumed, other_reward, round)
        again.append(told(learn(resumed, rollout)))
    assert again == course[2:]


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("ppo.floor=op:0.1,op:0.2", "named twice"),
        ("ppo.floor=op:1.5", "must be"),
        ("ppo.floor=op:-0.1", "must be"),
        ("ppo.floor=operation:0.1", "must be"),
        ("ppo.floor=op=0.1", "must be"),
        ("ppo.head_entropy=op:nan", "must be"),
        ("ppo.head_entropy=op:1,slot:2,op:1", "named twice"),
        ("ppo.head_entropy=op:1e3", "must be"),
        ("ppo.entropy_final=2", "must be"),
        ("ppo.advantage_std_floor=-1", "must be"),
    ],
)
def test_bad_coefficients_are_refused_in_one_line(setting: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(sets=[setting])
    message = str(caught.value)
    assert word in message
    assert setting.partition("=")[0] in message
    assert "\n" not in message
