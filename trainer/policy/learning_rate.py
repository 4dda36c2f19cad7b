"""The course of the policy's learning rate over the rounds of PPO."""

from __future__ import annotations

from esper_overwatch.trainer.compute.schedules import schedule_share
from esper_overwatch.trainer.config.policy_options import PPOConfig


def scheduled_rate(cfg: PPOConfig, rounds: int, updates: int) -> float:
    """The learning rate of the next update.

    Over the first `cfg.warmup_rounds` it grows linearly to `cfg.learning_rate`, then it follows
    `cfg.schedule` to 0 after the last round, see `schedule_share`.

    Args:
        rounds: of PPO; read by schedules that decay only.
        updates: finished before.
    """
    share = schedule_share(cfg.schedule, warmup=cfg.warmup_rounds, total=rounds, done=updates)
    return cfg.learning_rate * share
