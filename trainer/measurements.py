"""Measurements of one epoch, as device tensors; hosts produce them, reward, policy and telemetry use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor


class Guess(NamedTuple):
    """Chance-level baselines of N envs that learn different tasks: a guess that ignores the input."""

    chance: Tensor
    """float32 [N], its accuracy."""
    loss: Tensor
    """float32 [N], its loss, nats."""


class UniformGuess(NamedTuple):
    """Chance-level baseline where all envs learn one task."""

    chance: float
    loss: float


COUNTS = ("parameters", "seed_parameters")
"""Fields of `Measurements` that are int64: float32 has no room for all counts above 2**24."""


@dataclass
class Measurements:
    """Tensors [N], [N, S], [N, S, S] on the device; NaN in a field marked so means "not measured".

    All are float32, but for counts, which are int64.
    """

    train_loss: Tensor
    """[N] mean over the epoch's batches, nats."""
    train_accuracy: Tensor
    """[N] 0..1."""
    val_loss: Tensor
    """[N] mean over the validation split, nats."""
    val_accuracy: Tensor
    """[N] 0..1."""
    contribution: Tensor
    """[N, S] val accuracy minus the same with this slot's alpha at 0; NaN where not measured."""
    interaction: Tensor
    """[N, S, S], symmetric: what two seeds contribute together less what each does while the other stays, see
    `hosts.validation`; NaN where not measured."""
    host_grad_norm: Tensor
    """[N] L2 over all host gradients of the epoch's last step; NaN where that step overflowed (fp16)."""
    host_health: Tensor
    """[N] share of host tensors whose gradient in the last step is finite, not vanished, not exploded."""
    seed_grad_norm: Tensor
    """[N, S] as `host_grad_norm`, of each seed; NaN where no seed ran."""
    seed_health: Tensor
    """[N, S] as `host_health`, of each seed; NaN where no seed ran."""
    growth: Tensor
    """[N, S, 4] of each empty slot, see `hosts.growth_score`; NaN where not measured."""
    parameters: Tensor
    """[N] parameters of the host and its live seeds; of these those that have fossilised, where only they are
    validated (`reward.only_fossilized`)."""
    seed_parameters: Tensor
    """[N, S] those of each live seed; 0 where there is none."""

    @classmethod
    def unmeasured(cls, n: int, s: int, device: torch.device | str = "cpu") -> Measurements:
        """Everything NaN: the state before the first epoch of an episode (parameters 0)."""
        shapes = {
            "contribution": (n, s),
            "interaction": (n, s, s),
            "seed_grad_norm": (n, s),
            "seed_health": (n, s),
            "growth": (n, s, 4),
            "seed_parameters": (n, s),
        }
        values = {
            f.name: torch.full(shapes.get(f.name, (n,)), float("nan"), device=device) for f in fields(cls)
        }
        counts = {name: torch.zeros_like(values[name], dtype=torch.int64) for name in COUNTS}
        return cls(**values | counts)

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor], device: torch.device) -> Measurements:
        """Restore what a checkpoint has saved; in old ones counts are float32."""
        counts = {name: state[name].to(device, torch.int64) for name in COUNTS}
        return cls(**{name: tensor.to(device) for name, tensor in state.items()} | counts)
