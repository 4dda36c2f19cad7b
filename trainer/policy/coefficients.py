"""The coefficients of one PPO update: each follows from the options and from the number of the update.

They are tensors, so that a compiled loss and a captured step stay the same programs while they change.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from esper_overwatch.trainer.config.policy_options import PPOConfig


class Coefficients(NamedTuple):
    """Coefficients of an update's loss."""

    clip: float
    """Distance from 1 at which ratios are clipped; a change of it recompiles the loss."""
    value: Tensor
    """[] weight of the value loss."""
    entropy: Tensor
    """[] weight of the entropy bonus."""

    @classmethod
    def of(
        cls,
        cfg: PPOConfig,
        updates: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Coefficients:
        """Coefficients of the update after `updates` finished ones."""
        both = torch.tensor([cfg.value_coefficient, entropy_coefficient(cfg, updates)], dtype=dtype)
        return cls(cfg.clip, *both.to(device, non_blocking=True).unbind())


def entropy_coefficient(cfg: PPOConfig, updates: int) -> float:
    """Weight of the entropy bonus after `updates` finished ones.

    c_k = (1 - d) c_0 + d c_1 with d = min(1, k / R): from c_0 = `cfg.entropy_coefficient` linearly to
    c_1 = `cfg.entropy_final`, over R = `cfg.entropy_rounds`. It never leaves the range of the two. With R = 0
    it stays c_0.
    """
    first, final, rounds = cfg.entropy_coefficient, cfg.entropy_final, cfg.entropy_rounds
    if rounds == 0:
        return first
    done = min(1.0, updates / rounds)
    blend = (1.0 - done) * first + done * final
    return min(max(blend, min(first, final)), max(first, final))
