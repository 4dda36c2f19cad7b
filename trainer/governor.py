"""Rolls failed hosts back to their last good epoch, each alone, by masked tensor operations over all.

A host has failed where
    nan         its training or validation loss is not finite: at once;
    collapse    its training loss is back at ln(perplexity) after it had been well below: at once;
    divergence  its training loss is above mean + 6 sigma and 3 x mean of the episode, 3 epochs in a row.
The options `governor.*` have these limits; the numbers here are their defaults.

Its weights, its seeds and its slots return to the snapshot bit for bit, its momentum is cleared. A ramp of
alpha that was under way in the snapshot stops there, and a fade-out is called off: going on would most likely
make the host fail again in the next epoch, and in the one after. Policy or operator may start another.

It also forbids what would undo a host at once, before it is done, see `Governor.vetoes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Op, Stage

from .compute.cuda_graphs import CudaGraphs
from .config.seed_options import GovernorConfig
from .hosts.population import Population
from .measurements import Guess, Measurements, UniformGuess
from .seeds import alpha
from .seeds.table import is_in


class RollbackReason(IntEnum):
    """Why a host was rolled back; 0 where it was not."""

    NO = 0
    NAN = 1
    COLLAPSE = 2
    DIVERGENCE = 3


class VetoReason(IntEnum):
    """Why an action is forbidden; 0 where it is not."""

    NO = 0
    UNDONE = 1
    """A rollback has just undone the same."""
    FORGETS = 2
    """The host would be back at a guess."""


class Governor:
    """Watches the losses of N hosts through an episode.

    Args:
        population: whose hosts are watched.
        perplexity: of the task, that of a guess that ignores the input.
        chance: accuracy of that guess.
        config: its limits, and what it forbids.
    """

    def __init__(
        self,
        population: Population,
        perplexity: float,
        chance: float = 0.0,
        config: GovernorConfig | None = None,
    ) -> None:
        self._population = population
        self.guess: Guess | UniformGuess = UniformGuess(chance, math.log(perplexity))
        """Chance-level baseline of the run's task, or of each env's own."""
        self._config = config or GovernorConfig()
        (n, slots), device = population.table.shape, population.table.stage.device
        self._state = {
            "count": torch.zeros(n, dtype=torch.float64, device=device),
            "mean": torch.zeros(n, dtype=torch.float64, device=device),
            "m2": torch.zeros(n, dtype=torch.float64, device=device),
            "best": torch.full((n,), math.inf, dtype=torch.float64, device=device),
            "streak": torch.zeros(n, dtype=torch.int64, device=device),
            "kept": torch.zeros(n, dtype=torch.int64, device=device),
            "failed": torch.zeros(n, dtype=torch.bool, device=device),
            "raised": torch.zeros(n, slots, dtype=torch.int64, device=device),
            "lowered": torch.zeros(n, slots, dtype=torch.int64, device=device),
        }
        """`raised` and `lowered`: epochs for which an alpha may not move that way again."""
        self._epoch = torch.zeros((), dtype=torch.int64, device=device)
        self._roll_back: Callable[[Measurements], dict[str, Tensor]] = self._roll_back_failed

    def begin_episode(self) -> None:
        """Fresh hosts: what they are born with is their first snapshot."""
        for name, tensor in self._state.items():
            tensor.fill_(math.inf if name == "best" else 0)
        self._population.snapshot(torch.ones_like(self._state["streak"], dtype=torch.bool))

    def capture(self, graphs: CudaGraphs) -> None:
        """Let `roll_back_failed` be captured as a CUDA graph."""
        self._roll_back = graphs.wrap(
            "the governor",
            self._roll_back_failed,
            changes=lambda: [*self._state.values(), *self._population.restorable()],
        )

    def roll_back_failed(self, measurements: Measurements, epoch: int) -> dict[str, Tensor]:
        """Roll back the hosts that have failed, take a snapshot of the healthy ones.

        Args:
            measurements: of the epoch just finished.
            epoch: epochs finished in the episode, from 1.

        Returns:
            Columns int64 [N]: `governor.ill` (codes of `RollbackReason`), and `governor.restored` (the epoch
            of the snapshot that was restored).
        """
        self._epoch.fill_(epoch)
        return self._roll_back(measurements)

    def _roll_back_failed(self, measurements: Measurements) -> dict[str, Tensor]:
        s, config = self._state, self._config
        loss = measurements.train_loss.double()
        finite = measurements.train_loss.isfinite() & measurements.val_loss.isfinite()
        forgotten = self._has_learnt() & (loss >= config.forgotten_loss_ratio * self.guess.loss)
        sigma = (s["m2"] / (s["count"] - 1).clamp_min(1)).sqrt()
        high = (
            (s["count"] >= 2)
            & (loss > s["mean"] + config.divergence_sigmas * sigma)
            & (loss > config.divergence_ratio * s["mean"])
        )
        s["streak"].add_(1).masked_fill_(~high, 0)
        reason = torch.where(
            s["streak"] >= config.divergence_epochs,
            RollbackReason.DIVERGENCE,
            torch.zeros_like(s["streak"]),
        )
        reason = torch.where(forgotten, RollbackReason.COLLAPSE, reason)
        reason = torch.where(finite, reason, RollbackReason.NAN)
        failed = reason > 0
        restored = s["kept"].clone()
        healthy = ~failed & ~high
        self._update_statistics(loss, healthy)
        alpha_undone = self._population.table.alpha.clone()
        self._population.restore(failed)
        self._forbid_again(alpha_undone - self._population.table.alpha)
        s["failed"].copy_(failed)
        alpha.halt(self._population.table, failed.unsqueeze(1))
        self._population.snapshot(healthy)
        s["kept"].masked_fill_(healthy, self._epoch)
        s["streak"].masked_fill_(failed, 0)
        return {"governor.ill": reason, "governor.restored": restored}

    def vetoes(self, measurements: Measurements) -> Tensor:
        """Actions that would undo a host at once: codes of `VetoReason`, int64 [N, ops, S].

        UNDONE: the rollback before has undone a move of this slot's alpha; for `governor.veto_epochs` no op
        moves it that way. FORGETS: as measured in the epoch before, the host that has learnt something would
        be back at a guess without this seed; it may not be pruned. Its alpha can be lowered, so that the host
        learns to do without.

        Args:
            measurements: of the epoch just finished.
        """
        s, table = self._state, self._population.table
        n, slots = table.shape
        codes = torch.zeros(n, len(Op), slots, dtype=torch.int64, device=table.stage.device)
        if not self._config.veto:
            return codes
        raised, lowered = s["raised"] > 0, s["lowered"] > 0
        above_chance = (measurements.val_accuracy - self.guess.chance).unsqueeze(1)
        left = above_chance - table.contribution
        forgets = (
            is_in(table.stage, (Stage.BLENDING, Stage.HOLDING))
            & (table.contribution_age == 0)
            & (left <= (1.0 - self._config.forgotten_loss_ratio) * above_chance)
            & (above_chance > 0)
            & (self._has_learnt() & ~s["failed"]).unsqueeze(1)
        )
        codes[:, Op.PRUNE].masked_fill_(forgets, int(VetoReason.FORGETS))
        for op, undone in ((Op.ADVANCE, raised), (Op.SET_ALPHA, raised | lowered), (Op.PRUNE, lowered)):
            codes[:, op].masked_fill_(undone, int(VetoReason.UNDONE))
        return codes

    def _has_learnt(self) -> Tensor:
        """bool [N]: in its best epoch the host was well below the loss of a guess."""
        return self._state["best"] < self._config.learnt_loss_ratio * self.guess.loss

    def _forbid_again(self, moved: Tensor) -> None:
        """Count down what is forbidden; begin with what was undone, `moved` [N, S] of each alpha."""
        for name, undone in (("raised", moved > 0), ("lowered", moved < 0)):
            left = self._state[name]
            left.sub_(1).clamp_(min=0).masked_fill_(undone, self._config.veto_epochs)

    def _update_statistics(self, loss: Tensor, healthy: Tensor) -> None:
        """Welford's running mean and variance over the healthy epochs."""
        s = self._state
        s["count"] += healthy
        delta = torch.where(healthy, loss - s["mean"], 0.0)
        s["mean"] += delta / s["count"].clamp_min(1)
        s["m2"] += torch.where(healthy, delta * (loss - s["mean"]), 0.0)
        torch.where(healthy, torch.minimum(s["best"], loss), s["best"], out=s["best"])

    def state_dict(self) -> dict[str, Any]:
        """Copies; the snapshots themselves are the population's."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(state[name])
