"""Puts sick hosts back to their last good epoch, each alone, by masked tensor operations over all of them.

A host is sick where
    nan         its training or validation loss is not finite: at once;
    lobotomy    its training loss is back at ln(perplexity) after it had been well below: at once;
    divergence  its training loss is above mean + 6 sigma and 3 x mean of the episode, 3 epochs in a row.
Its weights, its seeds and its slots return to the snapshot bit for bit, its momentum is cleared. A ramp of
alpha that was under way in the snapshot stops there, and a fade-out is called off: going on would most likely
make the host sick again in the next epoch, and in the one after. Whoever decides may start another.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from .hosts.population import Population
from .seeds import alpha
from .signals import Signals

LEARNT = 0.7
"""A loss below this share of ln(perplexity) means that something was learnt."""
FORGOTTEN = 0.95
"""A loss from this share of ln(perplexity) on means that it is gone."""
SIGMAS = 6.0
TIMES_MEAN = 3.0
PATIENCE = 3


class Ill(IntEnum):
    """Why a host was put back; 0 where it was not."""

    NO = 0
    NAN = 1
    LOBOTOMY = 2
    DIVERGENCE = 3


class Governor:
    """Watches the losses of N hosts through an episode.

    Args:
        population: whose hosts are watched.
        perplexity: of the task, that of a host that does not look at its input.
    """

    def __init__(self, population: Population, perplexity: float) -> None:
        self._population = population
        self._uniform = math.log(perplexity)
        n, device = population.table.shape[0], population.table.stage.device
        self._state = {
            "count": torch.zeros(n, dtype=torch.float64, device=device),
            "mean": torch.zeros(n, dtype=torch.float64, device=device),
            "m2": torch.zeros(n, dtype=torch.float64, device=device),
            "best": torch.full((n,), math.inf, dtype=torch.float64, device=device),
            "streak": torch.zeros(n, dtype=torch.int64, device=device),
            "kept": torch.zeros(n, dtype=torch.int64, device=device),
        }

    def begin_episode(self) -> None:
        """Fresh hosts: what they are born with is their first snapshot."""
        for name, tensor in self._state.items():
            tensor.fill_(math.inf if name == "best" else 0)
        self._population.keep(torch.ones_like(self._state["streak"], dtype=torch.bool))

    def judge(self, signals: Signals, epoch: int) -> dict[str, Tensor]:
        """Put back who is sick, keep who is well.

        Args:
            signals: of the epoch just finished.
            epoch: epochs finished in the episode, from 1.

        Returns:
            Columns int64 [N]: `governor.ill` (codes of `Ill`), `governor.restored` (the epoch gone back to).
        """
        s = self._state
        loss = signals.train_loss.double()
        finite = signals.train_loss.isfinite() & signals.val_loss.isfinite()
        forgotten = (s["best"] < LEARNT * self._uniform) & (loss >= FORGOTTEN * self._uniform)
        sigma = (s["m2"] / (s["count"] - 1).clamp_min(1)).sqrt()
        high = (s["count"] >= 2) & (loss > s["mean"] + SIGMAS * sigma) & (loss > TIMES_MEAN * s["mean"])
        s["streak"].copy_(torch.where(high, s["streak"] + 1, 0))
        ill = torch.where(s["streak"] >= PATIENCE, Ill.DIVERGENCE, torch.zeros_like(s["streak"]))
        ill = torch.where(forgotten, Ill.LOBOTOMY, ill)
        ill = torch.where(finite, ill, Ill.NAN)
        sick = ill > 0
        restored = s["kept"].clone()
        well = ~sick & ~high
        self._learn(loss, well)
        self._population.restore(sick)
        alpha.halt(self._population.table, sick.unsqueeze(1))
        self._population.keep(well)
        s["kept"].masked_fill_(well, epoch)
        s["streak"].masked_fill_(sick, 0)
        return {"governor.ill": ill, "governor.restored": restored}

    def _learn(self, loss: Tensor, well: Tensor) -> None:
        """Welford's running mean and variance over the healthy epochs."""
        s = self._state
        s["count"] += well
        delta = torch.where(well, loss - s["mean"], 0.0)
        s["mean"] += delta / s["count"].clamp_min(1)
        s["m2"] += torch.where(well, delta * (loss - s["mean"]), 0.0)
        s["best"].copy_(torch.where(well, torch.minimum(s["best"], loss), s["best"]))

    def state_dict(self) -> dict[str, Any]:
        """Copies; the snapshots themselves are the population's."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(state[name])
