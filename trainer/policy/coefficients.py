"""The coefficients of one PPO update: each follows from the options and from the number of the update.

They are tensors, so that a compiled loss and a captured policy stay the same programs while they change.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.config.policy_options import HeadValues, PPOConfig

VALUE_WARMUP_START = 0.1
"""Share of `ppo.value_coefficient` that the warm-up begins with."""


class Coefficients(NamedTuple):
    """Coefficients of an update's loss, and of the decisions that it learns from."""

    clip: float
    """Distance from 1 at which ratios are clipped."""
    value: Tensor
    """[] weight of the value loss."""
    entropy: Tensor
    """[] weight of the entropy bonus."""
    head_entropy_H: Tensor
    """[heads] multiple of that weight."""
    floor_H: Tensor | None
    """[heads] least probability of a legal choice; None where no head has one."""

    @classmethod
    def of(
        cls,
        cfg: PPOConfig,
        updates: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Coefficients:
        """Coefficients of the update after `updates` finished ones."""

        def tensor(values: float | list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

        return cls(
            clip=cfg.clip,
            value=tensor(value_coefficient(cfg, updates)),
            entropy=tensor(entropy_coefficient(cfg, updates)),
            head_entropy_H=tensor(by_head(cfg.head_entropy, 1.0)),
            floor_H=tensor(floors(cfg, updates)) if cfg.floor else None,
        )

    @property
    def constants(self) -> tuple[Hashable, ...]:
        """The parts that are not tensors: a change of them recompiles the loss."""
        return self.clip, self.floor_H is None


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


def sharpness(cfg: PPOConfig, updates: int) -> float:
    """Factor of the logits after `updates` finished ones: 1 / temperature.

    s_k = s^d with d = min(1, max(0, 2 k / R - 1)): from 1 to s = `cfg.sharpen_factor` in the second half of
    R = `cfg.sharpen_rounds`, evenly on a logarithmic scale. With R = 0 it stays 1.
    """
    if cfg.sharpen_rounds == 0:
        return 1.0
    return float(cfg.sharpen_factor ** min(1.0, max(0.0, 2.0 * updates / cfg.sharpen_rounds - 1.0)))


def value_coefficient(cfg: PPOConfig, updates: int) -> float:
    """Weight of the value loss after `updates` finished ones.

    c_k = c min(1, .1 + .9 k / R): from a tenth linearly to c = `cfg.value_coefficient`, over
    R = `cfg.value_warmup_rounds`.
    """
    if updates >= cfg.value_warmup_rounds:
        return cfg.value_coefficient
    done = updates / cfg.value_warmup_rounds
    return cfg.value_coefficient * (VALUE_WARMUP_START + (1.0 - VALUE_WARMUP_START) * done)


def floors(cfg: PPOConfig, updates: int) -> list[float]:
    """Least probability of a legal choice of each head after `updates` finished ones.

    f_k = f max(0, 1 - k / R), f = `cfg.floor`, R = `cfg.floor_rounds`; with R = 0 it stays f.
    """
    left = max(0.0, 1.0 - updates / cfg.floor_rounds) if cfg.floor_rounds else 1.0
    return [left * floor for floor in by_head(cfg.floor, 0.0)]


def by_head(values: HeadValues, others: float) -> list[float]:
    """The number of each head in the order of `HEAD_NAMES`; `others` for those that are not named."""
    named = dict(item.split(":") for item in values)
    return [float(named.get(head, others)) for head in HEAD_NAMES]
