"""The course of the policy's learning rate over the rounds of a run."""

from __future__ import annotations

import math

from trainer.config.policy_options import PPOConfig


def scheduled_rate(cfg: PPOConfig, rounds: int, updates: int) -> float:
    """The learning rate of the next update.

    Over the first `cfg.warmup_rounds` it grows linearly to `cfg.learning_rate`, then it follows
    `cfg.schedule` to 0 after the last round. The cosine is that of Loshchilov and Hutter, "SGDR" (2017),
    without restarts.

    Args:
        rounds: of the run; read by schedules that decay only.
        updates: finished before.
    """
    if updates < cfg.warmup_rounds:
        return cfg.learning_rate * (updates + 1) / (cfg.warmup_rounds + 1)
    if cfg.schedule == "constant":
        return cfg.learning_rate
    done = min(1.0, (updates - cfg.warmup_rounds) / (rounds - cfg.warmup_rounds))
    left = 1.0 - done if cfg.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return cfg.learning_rate * left
