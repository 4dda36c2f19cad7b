"""Rewards of N envs as one batched kernel.

What counts is the final validation accuracy above chance, less the rent on added parameters. In the mode
`sparse` that is paid in the last epoch. In the mode `shaped` (the default) the same is told early, by
differences of potentials that telescope (Ng, Harada and Russell, "Policy invariance under reward
transformations", 1999; potentials that fade with time: Devlin and Kudenko, "Dynamic potential-based reward
shaping", 2012): with discount 1 the sum over an episode is that of `sparse`, but for rent being paid by the
epoch.

Components, each [N], sum to the reward:
    gain            gamma Phi' - Phi with Phi = accuracy - chance
    contribution    likewise, Phi = weight * time left * sum of what blended seeds contribute
    stage           likewise, Phi = weight * time left * sum of how far seeds are in their lives
    rent            - rent * (parameters - host's) / host's, spread over the epochs
    rollback        - penalty in the epoch whose work the governor undid
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import RewardConfig
from ..seeds.stages import BLENDED, Stage
from ..seeds.table import SlotTable
from ..signals import Signals

PROGRESS: dict[Stage, float] = {
    Stage.GERMINATED: 0.2,
    Stage.TRAINING: 0.4,
    Stage.BLENDING: 0.6,
    Stage.HOLDING: 0.8,
    Stage.FOSSILIZED: 1.0,
}
"""How far a seed is in its life; 0 for all other stages."""

POTENTIALS: tuple[str, ...] = ("gain", "contribution", "stage")


@dataclass(frozen=True)
class Terms:
    """What the kernel needs to know of a run."""

    cfg: RewardConfig
    gamma: float
    epochs: int
    """T."""
    chance: float
    """Accuracy of guessing, 1 / classes."""
    host_parameters: int


class Reward:
    """Rewards of N envs, epoch by epoch.

    Args:
        terms: what the run pays for.
        n: envs.
        device: where the tensors live.
    """

    def __init__(self, terms: Terms, n: int, device: torch.device | str = "cpu") -> None:
        self.terms = terms
        self._progress = torch.tensor([PROGRESS.get(stage, 0.0) for stage in Stage], device=device)
        self._blended = torch.tensor([stage in BLENDED for stage in Stage], device=device)
        self._before = torch.zeros(len(POTENTIALS), n, device=device)

    def begin_episode(self) -> None:
        """Freshly built hosts are worth as much as a guess: every potential is 0."""
        self._before = torch.zeros_like(self._before)

    def __call__(
        self, table: SlotTable, signals: Signals, epoch: int, rolled_back: Tensor
    ) -> dict[str, Tensor]:
        """Components of the reward of `epoch` (0-based), each float32 [N], see `total`.

        Args:
            table: slots at the end of the epoch.
            signals: what the epoch measured.
            epoch: whose action is paid.
            rolled_back: bool [N], the governor undid the epoch's work.
        """
        terms, cfg = self.terms, self.terms.cfg
        last = epoch == terms.epochs - 1
        growth = (signals.parameters - terms.host_parameters) / terms.host_parameters
        rent = -cfg.rent * growth
        rollback = -cfg.rollback_penalty * rolled_back
        phi = self._potentials(table, signals, left=1 - (epoch + 1) / terms.epochs)
        before, self._before = self._before, phi
        if cfg.mode == "sparse":
            paid = float(last)
            return {"gain": paid * phi[0], "rent": paid * rent, "rollback": rollback}
        # Over is worth nothing more: the last step pays the accuracy itself, as gamma * 0 - Phi + accuracy.
        change = (1.0 if last else terms.gamma) * phi - before
        shaped = dict(zip(POTENTIALS, change, strict=True))
        return shaped | {"rent": rent / terms.epochs, "rollback": rollback}

    def _potentials(self, table: SlotTable, signals: Signals, left: float) -> Tensor:
        """Phi [3, N] in the order of `POTENTIALS`; `left` is the share of the episode to come.

        Where accuracy was not measured its potential stays; a contribution never measured counts as none.
        """
        accuracy, cfg = signals.val_accuracy, self.terms.cfg
        gain = (accuracy - self.terms.chance).where(~accuracy.isnan(), self._before[0])
        counted = self._blended[table.stage] & ~table.contribution.isnan()
        contribution = table.contribution.where(counted, 0.0).sum(1)
        progress = self._progress[table.stage].sum(1)
        return torch.stack([gain, cfg.contribution * left * contribution, cfg.stage * left * progress])

    def state_dict(self) -> dict[str, Tensor]:
        return {"before": self._before}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._before = state["before"].to(self._before.device)


def total(components: dict[str, Tensor]) -> Tensor:
    """The reward [N]: the sum of its components."""
    return torch.stack(list(components.values())).sum(0)
