"""The seeds of a group: a fixed pool of parameters per slot and blueprint, and how a slot is run.

Germinating, pruning and fossilising change rows of tensors, never their shapes. Rows of a seed that is not
there are 0, weights and momentum alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..seeds.blend import blend, gate, gate_specs, gather_rows, take_rows
from ..seeds.blueprints import Blueprint, verify
from ..seeds.stages import BLENDED, ISOLATED, Stage, Style, slot_names
from ..seeds.table import SlotTable, is_in
from ..stacked import Init, Parameters, initialise
from .cnn import CNN
from .plan import SlotRun, Topology

GATE = "gate"
"""Stands where the blueprint's name would in the names of a slot's gate."""


class SeedPool:
    """Names, shapes and use of all seed parameters in the slots of a model.

    Args:
        model: the host architecture.
        kinds: blueprints on offer, in the order of the table's codes.

    Raises:
        BlueprintError: a blueprint does not keep the shape of a slot, or is not the identity it claims to be.
    """

    def __init__(self, model: CNN, kinds: Sequence[Blueprint]) -> None:
        self.kinds = list(kinds)
        self._codes = {kind.name: code for code, kind in enumerate(kinds)}
        self.slots = slot_names(1, len(model.blocks))
        self._modules: list[dict[str, dict[str, Init]]] = []
        for block in model.blocks:
            for kind in kinds:
                verify(kind, block.channels, block.size)
            specs = {kind.name: kind.specs(block.channels) for kind in kinds}
            self._modules.append({**specs, GATE: gate_specs(block.channels)})

    def specs(self) -> dict[str, Init]:
        """All tensors of the pool, named `slot.blueprint.tensor`, for one host."""
        return {
            name: spec
            for slot, modules in enumerate(self._modules)
            for module in modules
            for name, spec in self._named(slot, module).items()
        }

    def modules(self, run: SlotRun) -> list[str]:
        """Names of the blueprints that a run uses, and of the gate where it does."""
        return [self.kinds[b].name for b, _ in run.blueprints] + [GATE] * (run.gated is not None)

    def names(self, slot: int, module: str) -> list[str]:
        """Names of a module's tensors."""
        return list(self._named(slot, module))

    def holders(self, slot: int, module: str, table: SlotTable) -> Tensor:
        """bool [n]: hosts that have a seed of this blueprint, or one of style GATE."""
        live = is_in(table.stage[:, slot], (*ISOLATED, *BLENDED))
        if module == GATE:
            return live & (table.style[:, slot] == Style.GATE)
        return live & (table.blueprint[:, slot] == self._codes[module])

    def learners(self, slot: int, module: str, table: SlotTable) -> Tensor:
        """bool [n]: holders whose module gets a gradient: not frozen, and no gate of an isolated seed."""
        holders = self.holders(slot, module, table) & ~table.pruning[:, slot]
        return holders & is_in(table.stage[:, slot], BLENDED) if module == GATE else holders

    def parameters(self) -> Tensor:
        """int64 [S, K]: numbers that a seed of each blueprint adds in each slot."""
        counts = [[self._count(m, kind.name) for kind in self.kinds] for m in range(len(self.slots))]
        return torch.tensor(counts)

    def gate_parameters(self) -> Tensor:
        """int64 [S]: numbers that a seed of style GATE adds beside."""
        return torch.tensor([self._count(slot, GATE) for slot in range(len(self.slots))])

    @torch.no_grad()
    def germinate(self, weights: Parameters, topology: Topology, slot: int, keys: Tensor) -> None:
        """Draw the weights of the seeds born in this epoch, each from its host's key (int64 [n])."""
        born = topology.stage[:, slot] == Stage.GERMINATED
        for b, kind in enumerate(self.kinds):
            self._draw(weights, slot, kind.name, born & (topology.blueprint[:, slot] == b), keys)
        self._draw(weights, slot, GATE, born & (topology.style[:, slot] == Style.GATE), keys)

    @torch.no_grad()
    def tidy(self, weights: Parameters, momentum: Parameters, table: SlotTable) -> None:
        """Zero the rows of absent seeds, and the momentum of newborn and frozen ones."""
        for slot, modules in enumerate(self._modules):
            resting = (table.stage[:, slot] == Stage.GERMINATED) | table.pruning[:, slot]
            for module in modules:
                absent = ~self.holders(slot, module, table)
                for name in self.names(slot, module):
                    shape = (-1, *[1] * (weights[name].dim() - 1))
                    weights[name].masked_fill_(absent.view(shape), 0.0)
                    momentum[name].masked_fill_((absent | resting).view(shape), 0.0)

    def run(self, slot: int, h: Tensor, n: int, runs: Sequence[SlotRun], weights: Parameters) -> Tensor:
        """What leaves a slot: [B, n*C, H, W] from the same, seeds run and blended as planned."""
        out = h
        for run in runs:
            x = gather_rows(h, n, run.segment)
            s = x
            for b, takers in run.blueprints:
                kind = self.kinds[b]
                made = kind.forward(x, self._taken(slot, kind.name, run, weights))
                s = made if takers is None else _pick(takers, made, s)
            strength = run.alpha.unsqueeze(0)
            if run.gated is not None:
                opening = gate(x, self._taken(slot, GATE, run, weights))
                strength = torch.where(run.gated, strength * opening, strength)
            out = blend(out, x, s, strength, n, run.segment.blocks)
        return out

    def _draw(
        self, weights: Parameters, slot: int, module: str, mine: NDArray[np.bool_], keys: Tensor
    ) -> None:
        if not mine.any():
            return
        rows = torch.from_numpy(np.flatnonzero(mine)).to(keys.device)
        specs = self._named(slot, module)
        dtype = weights[next(iter(specs))].dtype
        for name, fresh in initialise(specs, keys[rows], dtype).items():
            weights[name].index_copy_(0, rows, fresh)

    def _taken(self, slot: int, module: str, run: SlotRun, weights: Parameters) -> Parameters:
        prefix = f"{self.slots[slot]}.{module}."
        return {
            name: take_rows(weights[prefix + name], run.owners, run.frozen)
            for name in self._modules[slot][module]
        }

    def _named(self, slot: int, module: str) -> dict[str, Init]:
        prefix = f"{self.slots[slot]}.{module}."
        return {prefix + name: spec for name, spec in self._modules[slot][module].items()}

    def _count(self, slot: int, module: str) -> int:
        return sum(spec.count for spec in self._modules[slot][module].values())


def _pick(takers: Tensor, made: Tensor, other: Tensor) -> Tensor:
    """Rows of `made` [B, k*C, H, W] where `takers` [k] says so, else of `other`."""
    channels = made.shape[1] // takers.shape[0]
    return torch.where(takers.repeat_interleave(channels).view(1, -1, 1, 1), made, other)
