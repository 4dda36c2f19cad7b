"""The policy's learning rate follows its schedule, round by round."""

from __future__ import annotations

import math

import pytest

from esper_overwatch.trainer.config.load import ConfigError, load
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.ppo import scheduled_rate


def rates(rounds: int, **options: object) -> list[float]:
    cfg = PPOConfig(learning_rate=0.8, **options)  # type: ignore[arg-type]
    return [scheduled_rate(cfg, rounds, done) for done in range(rounds + 1)]


def test_default_is_the_configured_rate_itself() -> None:
    assert rates(5) == [0.8] * 6
    assert scheduled_rate(PPOConfig(), 0, 10**6) == PPOConfig().learning_rate


def test_schedules_fall_to_zero_after_the_last_round() -> None:
    assert rates(4, schedule="linear") == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])
    cosine = [0.4 * (1 + math.cos(math.pi * k / 4)) for k in range(5)]
    assert rates(4, schedule="cosine") == pytest.approx(cosine, abs=1e-12)


def test_a_schedule_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.schedule.*set rounds"):
        load(sets=["ppo.schedule=cosine"])
