"""Validation, and what each seed contributes to it, in one pass that branches at the slots.

A seed's contribution is the accuracy with it less the accuracy with its alpha at 0. Both share everything
before the seed's slot, so the pass begins with one row per host; at each slot every host whose seed is
blended there spawns a row that goes on without it. Nothing is computed twice, and hosts without a blended
seed cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.task import Examples
from ..seeds.table import SlotTable
from ..stacked import Parameters, to_channels, to_rows
from . import plan
from .model import HostModel
from .plan import Codes, Columns, SlotRun, Topology
from .seeding import SeedPool

CHUNK_BYTES = 4 << 20
"""Size of the widest activation of a pass before it forks; what does not fit into a cache is slower."""


@dataclass(frozen=True)
class Score:
    """float32 on the device."""

    loss: Tensor
    """[n]"""
    accuracy: Tensor
    """[n]"""
    contribution: Tensor
    """[n, S]; NaN where no seed is blended, or none was asked for."""


@dataclass(frozen=True)
class Fork:
    """One slot of a pass: R rows come in, R + m go out."""

    rows: int
    """R."""
    runs: list[SlotRun]
    owners: Tensor
    """int64 [R], whose host each row that comes in is."""
    spawn: Tensor
    """int64 [m], hosts that go on without their seed as well."""


@dataclass(frozen=True)
class Pass:
    """A planned pass over all slots."""

    forks: list[Fork]
    owners: Tensor
    """int64 [R], whose host each row of the logits is; row i < n is host i with all its seeds."""
    slots: Tensor
    """int64 [R - n], which slot's seed each further row is without."""


class Validation:
    """Scores the hosts of a group."""

    def __init__(self, model: HostModel, pool: SeedPool) -> None:
        self._model, self._pool = model, pool
        self._n = 0
        self._plain: Pass | None = None
        self._forked: Pass | None = None

    def prepare(self, topology: Topology, table: SlotTable, dtype: torch.dtype) -> None:
        """Plan the passes for an epoch's topology."""
        self._n = topology.stage.shape[0]
        columns = [Columns(topology, table, slot, dtype) for slot in range(len(self._pool.slots))]
        self._plain, self._forked = self._plan(columns, fork=False), self._plan(columns, fork=True)

    @torch.no_grad()
    def measure(self, inputs: Iterable[Tensor], weights: Parameters, buffers: Parameters) -> None:
        """Measure batch norm's statistics on inputs [B, n*C, H, W], for the weights as they are."""
        assert self._plain is not None, "prepare comes first"
        for batches, batch in enumerate(inputs, 1):
            x = batch
            for slot, fork in enumerate(self._plain.forks):
                x = self._model.measure_block(slot, x, weights, buffers, batches)
                x = self._pool.run(slot, x, self._n, fork.runs, weights)

    @torch.no_grad()
    def run(
        self, examples: Examples, weights: Parameters, buffers: Parameters, *, contributions: bool
    ) -> Score:
        """Score all hosts on the same examples.

        Args:
            contributions: measure those of the blended seeds as well.
        """
        planned = self._forked if contributions else self._plain
        assert planned is not None, "prepare comes first"
        folded = [self._model.folded(i, weights, buffers) for i in range(len(planned.forks))]
        itemsize = weights["head.weight"].element_size()
        size = max(1, CHUNK_BYTES // (self._n * self._model.widest * itemsize))
        losses, correct = [], torch.zeros_like(planned.owners)
        for start in range(0, len(examples), size):
            x, labels = examples.span(start, start + size)
            logits = self._forward(x, planned, folded, weights).to(weights["head.weight"].dtype)
            each = F.cross_entropy(logits[: self._n].flatten(0, 1), labels.repeat(self._n), reduction="none")
            losses.append(each.view(self._n, -1))
            correct += (logits.argmax(2) == labels).sum(1)
        loss = torch.cat(losses, dim=1).mean(1)
        return self._score(loss, correct, examples.answers, planned)

    def _plan(self, columns: list[Columns], *, fork: bool) -> Pass:
        device = columns[0].device
        owners, slots, forks = np.arange(self._n), [], []
        for slot, column in enumerate(columns):
            spawn = np.flatnonzero(column.blended) if fork else np.arange(0)
            runs = plan.gather(column, owners, column.blended[owners], self._pool.convolving)
            forks.append(Fork(len(owners), runs, _on(owners, device), _on(spawn, device)))
            owners = np.concatenate([owners, spawn])
            slots.append(np.full(len(spawn), slot))
        return Pass(forks, _on(owners, device), _on(np.concatenate(slots), device))

    def _forward(
        self, x: Tensor, planned: Pass, folded: list[tuple[Tensor, ...]], weights: Parameters
    ) -> Tensor:
        """Logits [R, L, classes] of one chunk of examples."""
        for i, fork in enumerate(planned.forks):
            tensors = folded[i]
            if fork.rows > self._n:
                tensors = tuple(tensor.index_select(0, fork.owners) for tensor in tensors)
            x = self._model.eval_block(i, x, *tensors)
            without = to_rows(x, fork.rows).index_select(3, fork.spawn)
            x = self._pool.run(i, x, fork.rows, fork.runs, weights)
            if len(fork.spawn):
                x = to_channels(torch.cat([to_rows(x, fork.rows), without], dim=3))
        head = {name: weights[name].index_select(0, planned.owners) for name in self._model.head_names}
        return self._model.head(x, head)

    def _score(self, loss: Tensor, correct: Tensor, answers: int, planned: Pass) -> Score:
        accuracy = correct.double() / answers
        contribution = torch.full(
            (self._n, len(planned.forks)), float("nan"), dtype=accuracy.dtype, device=accuracy.device
        )
        owners = planned.owners[self._n :]
        contribution[owners, planned.slots] = accuracy[owners] - accuracy[self._n :]
        return Score(loss.float(), accuracy[: self._n].float(), contribution.float())


def _on(values: Codes, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
