"""Reward modes: one function each, from one epoch of N envs to the components of their reward.

Every component is a tensor [N]; they sum to the reward. Phi is a potential (`EpochInputs.phi`), T the epochs
of an episode, growth the added parameters relative to the host's.

    component     shaped            sparse          minimal         contribution
    gain          gamma Phi' - Phi  last: accuracy  last: accuracy
    terminal                                                        last: accuracy
    contribution  gamma Phi' - Phi                                  weight * bounded / T
    stage         gamma Phi' - Phi                                  gamma Phi' - Phi
    rent          - rent growth/T   last: - rent growth (both)      - rent growth/T
    early_prune                                     - fee per seed
    shock                                                           - shock * sum of (alpha' - alpha)^2
    rollback      - penalty in the epoch whose work the governor undid (all)

"last" is paid in the last epoch only, "accuracy" is that of the validation images above chance.

Potentials telescope (Ng, Harada and Russell, "Policy invariance under reward transformations", 1999; those
that fade with time: Devlin and Kudenko, "Dynamic potential-based reward shaping", 2012): with discount 1 an
episode of `shaped` earns what `sparse` does, but for rent being paid by the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config.policy_options import RewardConfig


@dataclass(frozen=True)
class RunContext:
    """What the modes need to know of a run."""

    cfg: RewardConfig
    gamma: float
    epochs: int
    """T."""
    chance: float
    """Accuracy of guessing."""
    host_parameters: int
    min_training_epochs: int
    """Epochs that a seed trains before it may be blended."""


@dataclass(frozen=True)
class EpochInputs:
    """One epoch of N envs, as the modes see it."""

    run: RunContext
    last: bool
    """The episode ends with it."""
    phi: dict[str, Tensor]
    """Potentials [N] after the epoch: `gain` = accuracy above chance (kept where it was not measured),
    `contribution` = weight * time left * sum of what blended seeds contribute, `stage` = weight * time left *
    sum of how far seeds are in their lives."""
    phi_before: dict[str, Tensor]
    """The same an epoch ago."""
    contribution_NS: Tensor
    """Of the blended seeds, as last measured; 0 elsewhere."""
    moved_NS: Tensor
    """How far alpha went in the epoch, with its sign; 0 where the governor put it back."""
    pruned_young: Tensor
    """int64 [N], seeds removed in the epoch before they could have been blended."""
    growth: Tensor
    """[N]"""
    rolled_back: Tensor
    """bool [N]"""

    def change(self, name: str) -> Tensor:
        """gamma Phi' - Phi [N]; after the last step there is no value left, so it pays Phi' undiscounted."""
        gamma = 1.0 if self.last else self.run.gamma
        return gamma * self.phi[name] - self.phi_before[name]

    @property
    def rollback(self) -> Tensor:
        """[N]"""
        return -self.run.cfg.rollback_penalty * self.rolled_back

    @property
    def rent(self) -> Tensor:
        """[N], of a complete episode at the present growth."""
        return -self.run.cfg.rent * self.growth


Mode = Callable[[EpochInputs], dict[str, Tensor]]


def shaped(m: EpochInputs) -> dict[str, Tensor]:
    """The final accuracy less the rent, paid early as differences of potentials."""
    return {
        "gain": m.change("gain"),
        "contribution": m.change("contribution"),
        "stage": m.change("stage"),
        "rent": m.rent / m.run.epochs,
        "rollback": m.rollback,
    }


def sparse(m: EpochInputs) -> dict[str, Tensor]:
    """The final accuracy less the rent, paid at the end."""
    paid = float(m.last)
    return {"gain": paid * m.phi["gain"], "rent": paid * m.rent, "rollback": m.rollback}


def minimal(m: EpochInputs) -> dict[str, Tensor]:
    """`sparse`, and a fee on seeds thrown away before they could be of use."""
    return sparse(m) | {"early_prune": -m.run.cfg.early_prune * m.pruned_young}


def contribution(m: EpochInputs) -> dict[str, Tensor]:
    """Seeds are paid for what they contribute, epoch by epoch, and the host for what it is at the end.

    Together, seeds are never credited with more than what their host has gained over a guess, whatever their
    counterfactuals add up to; what they take away counts in full.
    """
    given = m.contribution_NS.clamp_min(0.0).sum(1)
    taken = m.contribution_NS.clamp_max(0.0).sum(1)
    bounded = torch.minimum(given, m.phi["gain"].clamp_min(0.0)) + taken
    return {
        "contribution": m.run.cfg.contribution * bounded / m.run.epochs,
        "stage": m.change("stage"),
        "rent": m.rent / m.run.epochs,
        "shock": -m.run.cfg.shock * m.moved_NS.square().sum(1),
        "terminal": float(m.last) * m.phi["gain"],
        "rollback": m.rollback,
    }


MODES: dict[str, Mode] = {
    "shaped": shaped,
    "sparse": sparse,
    "contribution": contribution,
    "minimal": minimal,
}
