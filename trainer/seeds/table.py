"""The slot table: every seed of every env as a structure of arrays [N, S] on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, LEGAL_EDGES, Stage
from esper_overwatch.trainer.compute.device import filled
from esper_overwatch.trainer.compute.torch_private import assert_on_device


def is_in(stage: Tensor, stages: tuple[Stage, ...]) -> Tensor:
    """bool, whether each stage code is one of `stages`."""
    first, last = min(stages), max(stages)
    if first == last:
        return stage == first
    if len(set(stages)) == last - first + 1:
        return (stage >= first) & (stage <= last)
    return torch.stack([stage == s for s in stages]).any(0)


@cache
def _legal_targets(device: torch.device) -> Tensor:
    """int64 by stage: a bit for each stage that may be entered from there."""
    return filled([sum(1 << end for end in Stage if (stage, end) in LEGAL_EDGES) for stage in Stage], device)


EMPTY = {
    "stage": int(Stage.DORMANT),
    "blueprint": -1,
    "contribution_age": -1,
    **dict.fromkeys(("accuracy_at_stage", "contribution", "contribution_velocity", "interaction"), math.nan),
}
"""What an empty slot has in the columns that are not 0 there."""
FLOATS = (
    *("alpha", "alpha_from", "alpha_target", "accuracy_at_stage"),
    *("contribution", "contribution_velocity", "interaction"),
)


@dataclass
class SlotTable:
    """All tensors are [N, S], but for `interaction`. Only `lifecycle` changes them, in place."""

    stage: Tensor
    """int64, `Stage` codes."""
    blueprint: Tensor
    """int64 index into the task's blueprints; -1 where there is no seed."""
    style: Tensor
    """int64, `Style` codes."""
    tempo: Tensor
    """int64 epochs of the blend after ADVANCE."""
    alpha: Tensor
    """float32 0..1, in force for the current epoch."""
    alpha_from: Tensor
    alpha_target: Tensor
    curve: Tensor
    """int64, `Curve` codes."""
    ramp_epochs: Tensor
    """int64 length of the ramp; 0 where alpha is not moving."""
    ramp_done: Tensor
    """int64 epochs of the ramp behind us."""
    pruning: Tensor
    """bool: on the way down to 0, then PRUNED; the seed's weights are frozen."""
    epochs_in_stage: Tensor
    """int64."""
    age: Tensor
    """int64 epochs since germination."""
    embargo: Tensor
    """int64 epochs of embargo left."""
    accuracy_at_stage: Tensor
    """float32 validation accuracy when the stage was entered; NaN where not measured."""
    contribution: Tensor
    """float32, last measured; NaN where never."""
    contribution_velocity: Tensor
    """float32 change since the measurement before; NaN where there is none."""
    contribution_age: Tensor
    """int64 epochs since it was measured; -1 where never."""
    interaction: Tensor
    """float32 [N, S, S], symmetric, last measured of two blended seeds; NaN where never."""

    @classmethod
    def empty(cls, n: int, s: int, device: torch.device | str = "cpu") -> SlotTable:
        """N envs with S dormant slots each."""

        def column(name: str) -> Tensor:
            shape = (n, s, s) if name == "interaction" else (n, s)
            kind = torch.bool if name == "pruning" else torch.float32 if name in FLOATS else torch.int64
            return torch.full(shape, EMPTY.get(name, 0), dtype=kind, device=device)

        return cls(**{f.name: column(f.name) for f in fields(cls)})

    @property
    def shape(self) -> tuple[int, int]:
        return self.stage.shape[0], self.stage.shape[1]

    def rows(self, start: int, stop: int) -> SlotTable:
        """A view of envs start..stop: writes go through."""
        return SlotTable(**{f.name: getattr(self, f.name)[start:stop] for f in fields(self)})

    def enter(self, moves: dict[Stage, Tensor], accuracy: Tensor) -> None:
        """Let the slots of disjoint bool [N, S] enter a stage each; a dormant one forgets its seed.

        Args:
            accuracy: [N], the validation accuracy now.

        Raises:
            RuntimeError: a slot is not at the beginning of a legal edge, which is an error of ours. On a GPU
                it comes with a later operation.
        """
        after, entered = self.stage, torch.stack(list(moves.values())).any(0)
        for stage, where in moves.items():
            after = after.masked_fill(where, int(stage))
        are_legal = ~entered | (_legal_targets(after.device)[self.stage] >> after & 1).bool()
        assert_on_device(
            are_legal.all(), f"a seed may not enter {', '.join(s.name for s in moves)} from there"
        )
        self.stage.copy_(after)
        self.epochs_in_stage.masked_fill_(entered, 0)
        kept = self.accuracy_at_stage
        torch.where(entered, accuracy.unsqueeze(1).to(kept.dtype), kept, out=kept)
        for f in fields(self) if Stage.DORMANT in moves else ():
            current, where = getattr(self, f.name), moves[Stage.DORMANT]
            concerned = where if current.dim() == 2 else where.unsqueeze(1) | where.unsqueeze(2)
            current.masked_fill_(concerned, EMPTY.get(f.name, 0))

    def record_contribution(self, measured: Tensor) -> None:
        """Record an epoch's contributions, float [N, S], NaN where none was measured."""
        fresh = ~measured.isnan()
        change = measured - self.contribution
        torch.where(fresh, change, self.contribution_velocity, out=self.contribution_velocity)
        torch.where(fresh, measured, self.contribution, out=self.contribution)
        older = torch.where(self.contribution_age >= 0, self.contribution_age + 1, -1)
        self.contribution_age.copy_(torch.where(fresh, 0, older))

    def record_interaction(self, measured: Tensor) -> None:
        """Record an epoch's pair interactions, float [N, S, S], NaN where none was measured."""
        torch.where(measured.isnan(), self.interaction, measured, out=self.interaction)

    def known_interactions(self) -> Tensor:
        """Interactions last measured of seeds that are both still blended, [N, S, S]; NaN elsewhere."""
        blended = is_in(self.stage, BLENDED)
        return self.interaction.masked_fill(~(blended.unsqueeze(1) & blended.unsqueeze(2)), math.nan)

    def interaction_sum(self) -> Tensor:
        """[N, S], of each seed with the others; NaN where none is known."""
        known = self.known_interactions()
        return known.nansum(-1).masked_fill(known.isnan().all(-1), math.nan)

    def state_dict(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name).clone() for f in fields(self)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for f in fields(self):
            getattr(self, f.name).copy_(state[f.name])

    def reset(self) -> None:
        """Every slot dormant again."""
        self.load_state_dict(SlotTable.empty(*self.shape, device=self.stage.device).state_dict())
