"""Rewards of N envs, epoch by epoch: what a mode is given, and what is remembered from epoch to epoch.

Each mode defines its components: see `modes`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Op, Stage
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.measurements import Guess, Measurements, UniformGuess
from esper_overwatch.trainer.seeds.table import SlotTable

from .hindsight import HindsightCredit
from .modes import MODES, EpochInputs, RunContext

STAGE_PROGRESS: dict[Stage, float] = {
    Stage.GERMINATED: 0.2,
    Stage.TRAINING: 0.4,
    Stage.BLENDING: 0.6,
    Stage.HOLDING: 0.8,
    Stage.FOSSILIZED: 1.0,
}
"""Progress of a seed's life at a stage; 0 for all other stages."""
NUM_ESCROW_EPOCHS = 3
"""Epochs in which a gain must be there to have lasted."""
MAX_ESCROW_STEP = 0.2
"""Most of it, in accuracy, that an epoch pays out or takes back; the last one settles all."""
MAX_LOSS_STEP = 5.0
"""Most of the loss's fall that an epoch pays, in epochs of a host that unlearns a guess's loss evenly."""
POTENTIALS = ("gain", "contribution", "stage", "escrow", "loss")
GRACE_EPOCHS = 3
"""Age at which a seed begins to cost, in the mode `loss`."""


class Reward:
    """Computes the reward of N envs by the mode of the run.

    Args:
        run: what the mode needs to know of the run.
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
        self.guess: Guess | UniformGuess = UniformGuess(run.chance, run.guess_loss)
        """Chance-level baseline of the run's task, or of each env's own."""
        device = torch.device(device)
        compiler = compiler or Compiler("off", device)
        self._mode = compiler.wrap("the reward", MODES[run.cfg.mode], key=lambda inputs: inputs.last)
        progress = np.array([STAGE_PROGRESS.get(stage, 0.0) for stage in Stage])
        self._progress = upload(progress, device).to(torch.get_default_dtype())
        self._blended = upload(np.array([stage in BLENDED for stage in Stage]), device)
        self._hindsight = HindsightCredit(run.cfg.hindsight, n, slots, device)
        self._before = {
            **{name: torch.zeros(n, device=device) for name in POTENTIALS},
            "alpha": torch.zeros(n, slots, device=device),
            "pruned": torch.zeros(n, slots, dtype=torch.bool, device=device),
            "fossilized": torch.zeros(n, slots, dtype=torch.bool, device=device),
            "gains": torch.zeros(max(NUM_ESCROW_EPOCHS, run.cfg.final_epochs), n, device=device),
            "loss_now": torch.ones(n, device=device),
            "loss_best": torch.ones(n, device=device),
        }

    def begin_episode(self) -> None:
        """Freshly built hosts are worth as much as a guess, whose loss is 1 here, and hold no seeds."""
        for name, tensor in self._before.items():
            tensor.fill_(name.startswith("loss_"))
        self._hindsight.begin_episode()

    def __call__(
        self,
        table: SlotTable,
        measurements: Measurements,
        epoch: int,
        rolled_back: Tensor,
        op: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Components of the reward of `epoch` (0-based), each float32 [N], see `total`.

        Args:
            table: slots at the end of the epoch.
            measurements: what the epoch measured.
            epoch: whose action is paid.
            rolled_back: bool [N], the governor undid the epoch's work.
            op: int64 [N], what was done before it; None = nothing.
        """
        run, before = self.run, self._before
        pruned, fossilized = table.stage == Stage.PRUNED, table.stage == Stage.FOSSILIZED
        counted = self._blended[table.stage] & ~table.contribution.isnan()
        contribution_NS = table.contribution.where(counted, 0.0)
        remembered = self._remembered(measurements)
        now = self._potentials(table, remembered, contribution_NS.sum(1), epoch)
        removed = pruned & ~before["pruned"] & ~rolled_back.unsqueeze(1)
        costs = table.age >= GRACE_EPOCHS
        if run.cfg.only_fossilized and epoch >= run.epochs - run.cfg.final_epochs:
            costs &= fossilized
        inputs = EpochInputs(
            run=run,
            last=epoch == run.epochs - 1,
            phi=now,
            phi_before={name: before[name] for name in now},
            contribution_NS=contribution_NS,
            moved_NS=torch.where(rolled_back.unsqueeze(1), 0.0, table.alpha - before["alpha"]),
            pruned_young=torch.where(
                rolled_back, 0, (pruned & (table.age <= run.min_training_epochs)).sum(1)
            ),
            growth=(measurements.parameters - run.host_parameters) / run.host_parameters,
            grown=(measurements.seed_parameters * costs).sum(1) / run.host_parameters,
            final_loss=remembered["loss_now"],
            fossilized_NS=fossilized,
            fossilizing_NS=fossilized & ~before["fossilized"],
            acted=torch.zeros_like(rolled_back) if op is None else op != Op.WAIT,
            hindsight=self._hindsight.pay(table, removed, rolled_back),
            rolled_back=rolled_back,
        )
        components = self._mode(inputs)
        self._before = (
            now
            | remembered
            | {
                "alpha": table.alpha.clone(),
                "pruned": pruned,
                "fossilized": before["fossilized"] | fossilized,
            }
        )
        return components

    def _remembered(self, measurements: Measurements) -> dict[str, Tensor]:
        """The last gains [epochs, N]; the loss and its lowest, as shares of a guess's; kept where unknown."""
        before = self._before
        gain = measurements.val_accuracy - self.guess.chance
        gain = gain.where(~gain.isnan(), before["gains"][-1])
        loss = measurements.val_loss / self.guess.loss
        loss = loss.where(loss.isfinite(), before["loss_now"])
        return {
            "gains": torch.cat([before["gains"][1:], gain.unsqueeze(0)]),
            "loss_now": loss,
            "loss_best": torch.minimum(before["loss_best"], loss),
        }

    def _potentials(
        self, table: SlotTable, remembered: dict[str, Tensor], contributed: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """Phi [N] by name after an epoch, see `EpochInputs`.

        `escrow` and `loss` follow their aims in bounded steps, so that one epoch cannot pay all. That of
        `loss` is half the loss and half the lowest so far: what is lost again costs half, regaining it pays
        half, and going to and fro pays nothing.
        """
        run, before, left = self.run, self._before, 1 - (epoch + 1) / self.run.epochs
        gains, last = remembered["gains"], epoch == run.epochs - 1
        lasting = gains[-NUM_ESCROW_EPOCHS:].amin(0)
        step = math.inf if last else MAX_ESCROW_STEP
        counted = min(run.cfg.final_epochs, run.epochs) if last else 1
        fallen = run.epochs * (1.0 - (remembered["loss_now"] + remembered["loss_best"]) / 2.0)
        return {
            "gain": gains[-counted:].mean(0),
            "contribution": run.cfg.contribution * left * contributed,
            "stage": run.cfg.stage * left * self._progress[table.stage].sum(1),
            "escrow": before["escrow"] + (lasting - before["escrow"]).clamp(-step, step),
            "loss": before["loss"] + (fallen - before["loss"]).clamp(-MAX_LOSS_STEP, MAX_LOSS_STEP),
        }

    def state_dict(self) -> dict[str, Tensor]:
        own = {name: tensor.clone() for name, tensor in self._before.items()}
        return own | {f"hindsight.{name}": owed for name, owed in self._hindsight.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self._before.items():
            tensor.copy_(state[name])
        self._hindsight.load_state_dict(
            {name: state[f"hindsight.{name}"] for name in self._hindsight.state_dict()}
        )


def total(components: dict[str, Tensor]) -> Tensor:
    """The reward [N]: the sum of its components."""
    return torch.stack(list(components.values())).sum(0)
