"""Rewards of N envs, epoch by epoch: what a mode is given, and what is remembered from epoch to epoch.

Each mode defines its components: see `modes`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.messages.vocabulary import BLENDED, Stage
from trainer.compute.compiler import Compiler
from trainer.measurements import Measurements
from trainer.seeds.table import SlotTable

from .modes import MODES, EpochInputs, RunContext

STAGE_PROGRESS: dict[Stage, float] = {
    Stage.GERMINATED: 0.2,
    Stage.TRAINING: 0.4,
    Stage.BLENDING: 0.6,
    Stage.HOLDING: 0.8,
    Stage.FOSSILIZED: 1.0,
}
"""How far a seed is in its life; 0 for all other stages."""


class Reward:
    """Computes the reward of N envs by the mode of the run.

    Args:
        run: what the mode needs to know of the run.
        n: envs.
        slots: S.
        device: where the tensors live.
        compiler: of the mode; None = uncompiled.
    """

    def __init__(
        self,
        run: RunContext,
        n: int,
        slots: int,
        device: torch.device | str = "cpu",
        compiler: Compiler | None = None,
    ) -> None:
        self.run = run
        compiler = compiler or Compiler("off", torch.device(device))
        self._mode = compiler.wrap("the reward", MODES[run.cfg.mode], key=lambda inputs: inputs.last)
        self._progress = torch.tensor([STAGE_PROGRESS.get(stage, 0.0) for stage in Stage], device=device)
        self._blended = torch.tensor([stage in BLENDED for stage in Stage], device=device)
        self._before = {
            "gain": torch.zeros(n, device=device),
            "contribution": torch.zeros(n, device=device),
            "stage": torch.zeros(n, device=device),
            "alpha": torch.zeros(n, slots, device=device),
        }

    def begin_episode(self) -> None:
        """Freshly built hosts are worth as much as a guess and hold no seeds: everything is 0."""
        for tensor in self._before.values():
            tensor.zero_()

    def __call__(
        self, table: SlotTable, measurements: Measurements, epoch: int, rolled_back: Tensor
    ) -> dict[str, Tensor]:
        """Components of the reward of `epoch` (0-based), each float32 [N], see `total`.

        Args:
            table: slots at the end of the epoch.
            measurements: what the epoch measured.
            epoch: whose action is paid.
            rolled_back: bool [N], the governor undid the epoch's work.
        """
        run, before = self.run, self._before
        left = 1 - (epoch + 1) / run.epochs
        accuracy = measurements.val_accuracy
        counted = self._blended[table.stage] & ~table.contribution.isnan()
        contribution_NS = table.contribution.where(counted, 0.0)
        now = {
            "gain": (accuracy - run.chance).where(~accuracy.isnan(), before["gain"]),
            "contribution": run.cfg.contribution * left * contribution_NS.sum(1),
            "stage": run.cfg.stage * left * self._progress[table.stage].sum(1),
        }
        young = (table.stage == Stage.PRUNED) & (table.age <= run.min_training_epochs)
        inputs = EpochInputs(
            run=run,
            last=epoch == run.epochs - 1,
            phi=now,
            phi_before={name: before[name] for name in now},
            contribution_NS=contribution_NS,
            moved_NS=torch.where(rolled_back.unsqueeze(1), 0.0, table.alpha - before["alpha"]),
            pruned_young=torch.where(rolled_back, 0, young.sum(1)),
            growth=(measurements.parameters - run.host_parameters) / run.host_parameters,
            rolled_back=rolled_back,
        )
        components = self._mode(inputs)
        self._before = now | {"alpha": table.alpha.clone()}
        return components

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._before.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self._before.items():
            tensor.copy_(state[name])


def total(components: dict[str, Tensor]) -> Tensor:
    """The reward [N]: the sum of its components."""
    return torch.stack(list(components.values())).sum(0)
