"""Validation, and what each seed contributes to it, in one pass that branches at the slots.

A coalition is a host with some of its blended seeds, the others' alpha at 0. Coalitions of a host share
everything before the first slot in which they differ: the pass is a tree of their prefixes, whose rows go on
with the seed of a slot, without it, or both ways. Nothing is computed twice.

A seed's contribution is the accuracy with all seeds less that of the coalition without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainer.compute.device import upload
from trainer.compute.stacked_ops import Parameters, to_channels, to_rows
from trainer.data.task import Examples
from trainer.reward.shapley import pack, unpack

from .model import HostModel
from .seed_pool import SeedPool
from .slot_plan import Codes, SlotColumns, SlotRun, Topology

MAX_CHUNK_BYTES = 4 << 20
"""Size of the widest activation of a pass; what does not fit into a cache is slower."""


@dataclass(frozen=True)
class Score:
    """Of n hosts: float32 on the device."""

    loss: Tensor
    """[n]"""
    accuracy: Tensor
    """[n]"""
    contribution: Tensor
    """[n, S]; NaN where no seed is blended, or it was not asked for."""


@dataclass(frozen=True)
class Coalitions:
    """Hosts without some of their seeds, M of them, no two alike."""

    owners: Codes
    """[M], whose host."""
    removed: Codes
    """[M], bit s set where the seed of slot s is left out; only blended ones can be."""

    def at(self, slot: int) -> Codes:
        """[M], distinct for each prefix of coalitions up to a slot."""
        return pack(self.owners, self.removed & ((1 << (slot + 1)) - 1))


@dataclass(frozen=True)
class AblationSplit:
    """One slot of a pass: R rows come in; the ones that keep its seed go out, then the ones without."""

    rows: int
    """R."""
    runs: list[SlotRun]
    owners: Tensor | None
    """int64 [R], whose host each row that comes in is; None where they are all hosts in order."""
    kept: Tensor | None
    """int64, rows that go on as the slot leaves them; None where all do."""
    spawn: Tensor
    """int64, rows that go on without the slot's seed."""


@dataclass(frozen=True)
class ValidationPass:
    """A planned pass over all slots."""

    forks: list[AblationSplit]
    owners: Tensor
    """int64 [R], whose host each row of the logits is."""
    coalitions: Coalitions
    """The R rows of the logits."""


class Validation:
    """Scores the hosts of a group."""

    def __init__(self, model: HostModel, pool: SeedPool) -> None:
        self._model, self._pool = model, pool
        self._n = 0
        self._columns: list[SlotColumns] = []
        self._plain: ValidationPass | None = None
        self._forked: ValidationPass | None = None

    def plan(self, topology: Topology, columns: list[SlotColumns]) -> None:
        """Plan the passes for an epoch's topology."""
        self._n = topology.stage.shape[0]
        self._columns = columns
        hosts = np.arange(self._n)
        owners, slots = np.nonzero(topology.is_measured)
        self._plain = self._plan(Coalitions(hosts, np.zeros_like(hosts)))
        self._forked = self._plain
        if len(owners):
            self._forked = self._plan(
                Coalitions(np.append(hosts, owners), np.append(np.zeros_like(hosts), 1 << slots))
            )

    @torch.no_grad()
    def measure(self, inputs: Iterable[Tensor], weights: Parameters, buffers: Parameters) -> None:
        """Measure batch norm's statistics on inputs [B, n*C, H, W], for the weights as they are."""
        assert self._plain is not None, "plan comes first"
        *before, _ = self._plain.forks
        for batches, batch in enumerate(inputs, 1):
            x = batch
            for slot, fork in enumerate(before):
                x = self._model.measure_block(slot, x, weights, buffers, batches)
                x = self._pool.run(slot, x, self._n, fork.runs, weights)
            self._model.measure_block(len(before), x, weights, buffers, batches)

    @torch.no_grad()
    def run(
        self, examples: Examples, weights: Parameters, buffers: Parameters, *, contributions: bool
    ) -> Score:
        """Score all hosts on the same examples.

        Args:
            contributions: measure those of the blended seeds as well.
        """
        planned = self._forked if contributions else self._plain
        assert planned is not None, "plan comes first"
        losses, correct = [], torch.zeros_like(planned.owners)
        for labels, logits in self._chunks(examples, planned, weights, buffers, rows=self._n):
            each = F.cross_entropy(logits[: self._n].flatten(0, 1), labels.repeat(self._n), reduction="none")
            losses.append(each.view(self._n, -1))
            correct += (logits.argmax(2) == labels).sum(1)
        loss = torch.cat(losses, dim=1).mean(1)
        return self._score(loss, correct, examples.answers, planned)

    @torch.no_grad()
    def values(
        self, examples: Examples, weights: Parameters, buffers: Parameters, wanted: Coalitions
    ) -> Tensor:
        """Accuracy of each coalition: float64 [M] on the device, in the order they were asked for."""
        planned = self._plan(wanted)
        widest = max(len(planned.owners), *(fork.rows for fork in planned.forks))
        correct = torch.zeros_like(planned.owners)
        for labels, logits in self._chunks(examples, planned, weights, buffers, widest):
            correct += (logits.argmax(2) == labels).sum(1)
        slots = len(planned.forks)
        made = planned.coalitions.at(slots)
        order = np.argsort(made)
        rows = order[np.searchsorted(made, wanted.at(slots), sorter=order)]
        return correct[upload(rows, correct.device)].double() / examples.answers

    def _plan(self, wanted: Coalitions) -> ValidationPass:
        """The tree of the coalitions' prefixes; hosts with all their seeds come first, in order."""
        device = self._columns[0].device
        owners = np.unique(wanted.owners)
        rows = pack(owners, np.zeros_like(owners))
        forks = []
        for slot, column in enumerate(self._columns):
            owners, _ = unpack(rows)
            following = wanted.at(slot)
            kept, spawn = _are_in(rows, following), _are_in(rows | 1 << slot, following)
            running = column.blended[owners] & kept
            forks.append(
                AblationSplit(
                    rows=len(rows),
                    runs=self._pool.gather(slot, column, owners, running),
                    owners=None if np.array_equal(owners, np.arange(self._n)) else upload(owners, device),
                    kept=None if kept.all() else upload(np.flatnonzero(kept), device),
                    spawn=upload(np.flatnonzero(spawn), device),
                )
            )
            rows = np.concatenate([rows[kept], rows[spawn] | 1 << slot])
        ends = Coalitions(*unpack(rows))
        return ValidationPass(forks, upload(ends.owners, device), ends)

    def _chunks(
        self, examples: Examples, planned: ValidationPass, weights: Parameters, buffers: Parameters, rows: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Labels [L] and logits [R, L, classes], as many examples at a time as fit a cache for `rows`."""
        folded = [self._model.folded(i, weights, buffers) for i in range(len(planned.forks))]
        itemsize = weights["head.weight"].element_size()
        size = max(1, MAX_CHUNK_BYTES // (rows * self._model.widest * itemsize))
        for start in range(0, len(examples), size):
            x, labels = examples.span(start, start + size)
            yield labels, self._forward(x, planned, folded, weights).to(weights["head.weight"].dtype)

    def _forward(
        self, x: Tensor, planned: ValidationPass, folded: list[tuple[Tensor, ...]], weights: Parameters
    ) -> Tensor:
        """Logits [R, L, classes] of one chunk of examples."""
        for i, fork in enumerate(planned.forks):
            tensors = folded[i]
            if fork.owners is not None:
                tensors = tuple(tensor.index_select(0, fork.owners) for tensor in tensors)
            x = self._model.eval_block(i, x, *tensors)
            without = to_rows(x, fork.rows).index_select(3, fork.spawn)
            x = self._pool.run(i, x, fork.rows, fork.runs, weights)
            if fork.kept is not None or len(fork.spawn):
                going = to_rows(x, fork.rows)
                going = going if fork.kept is None else going.index_select(3, fork.kept)
                x = to_channels(torch.cat([going, without], dim=3))
        head = {name: weights[name].index_select(0, planned.owners) for name in self._model.head_names}
        return self._model.head(x, head)

    def _score(self, loss: Tensor, correct: Tensor, answers: int, planned: ValidationPass) -> Score:
        accuracy = correct.double() / answers
        contribution = torch.full(
            (self._n, len(planned.forks)), float("nan"), dtype=accuracy.dtype, device=accuracy.device
        )
        owners = planned.owners[self._n :]
        slots = upload(np.log2(planned.coalitions.removed[self._n :]).astype(np.int64), accuracy.device)
        contribution[owners, slots] = accuracy[owners] - accuracy[self._n :]
        return Score(loss.float(), accuracy[: self._n].float(), contribution.float())


def _are_in(values: Codes, known: Codes) -> NDArray[np.bool_]:
    """np.isin for few numbers, of which it takes five times as long."""
    ordered = np.sort(known)
    places = np.searchsorted(ordered, values)
    found: NDArray[np.bool_] = ordered.take(places, mode="clip") == values
    return found
