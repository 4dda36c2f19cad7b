"""Validation, and what each seed contributes to it, in one pass that branches at the slots.

A coalition is a host with some of its blended seeds, the others' alpha at 0. Coalitions of a host share
everything before the first slot in which they differ: the pass is a tree of their prefixes, whose rows go on
with the seed of a slot, without it, or both ways. Nothing is computed twice.

A seed's contribution is the accuracy with all seeds less that of the coalition without it. The interaction of
two is v(N) - v(N - i) - v(N - j) + v(N - i - j), the second difference of the accuracy v at the present host
N: positive where they need each other, negative where one could stand in for the other. What batch norms
are to validate by is measured in the same tree on training batches, so that each coalition has statistics of
its own. By those of the whole host a coalition would pay for blocks that expect another input than they get,
which is not what the missing seed did for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.trainer.compute.device import device_memory_bytes, upload, upload_together
from esper_overwatch.trainer.compute.native_rows import take_rows
from esper_overwatch.trainer.compute.stacked_ops import Parameters
from esper_overwatch.trainer.data.task import NO_LABEL, Examples
from esper_overwatch.trainer.reward.shapley import pack, unpack

from .model import HostModel
from .seed_pool import SeedPool
from .slot_plan import Codes, Run, SlotColumns, Topology

MAX_CHUNK_BYTES = 4 << 20
"""Size of the widest activation of a pass; what does not fit into a cache is slower."""
MAX_CHUNK_SHARE = 64
"""On a GPU, whose host pays for each pass, so much of its memory: one part in 64, of 80 GB 1.25 GB."""
MAX_CALIBRATION_BYTES = 64 << 20
"""On a CPU, bytes of the widest activation when statistics of coalitions are measured, which takes whole
batches at a time: more coalitions than fit are measured some hosts after the others."""


@dataclass(frozen=True)
class Score:
    """Score of n hosts: float32 on the device."""

    loss: Tensor
    """[n]"""
    accuracy: Tensor
    """[n]"""
    contribution: Tensor
    """[n, S]; NaN where no seed is blended, or it was not asked for."""
    interaction: Tensor
    """[n, S, S], symmetric; NaN where it was not asked for."""


@dataclass(frozen=True)
class Coalitions:
    """Hosts without some of their seeds, M of them, no two alike."""

    owners: Codes
    """[M], whose host."""
    removed: Codes
    """[M], bit s set where the seed of slot s is left out; only blended ones can be."""

    @classmethod
    def of(cls, topology: Topology) -> Coalitions:
        """The hosts, then those that are measured for their contributions, then those for interactions."""
        hosts = np.arange(len(topology.stage))
        owners, slots = np.nonzero(topology.is_measured)
        both, first, second = np.nonzero(topology.pairs)
        removed = np.concatenate([np.zeros_like(hosts), 1 << slots, 1 << first | 1 << second])
        return cls(np.concatenate([hosts, owners, both]), removed)

    def at(self, slot: int) -> Codes:
        """[M], distinct for each prefix of coalitions up to a slot."""
        return pack(self.owners, self.removed & ((1 << (slot + 1)) - 1))


@dataclass(frozen=True)
class AblationSplit:
    """One slot of a pass: R rows come in; the ones that keep its seed go out, then the ones without."""

    rows: int
    """R."""
    owners: Tensor | None
    """int64 [R], whose host each row that comes in is; None where they are all hosts in order."""
    going: Tensor | None
    """int64, which of the R rows each is that goes out; None where all do, in order."""
    runs: list[Run]
    """Of the rows that go out."""


@dataclass(frozen=True)
class ValidationPass:
    """A planned pass over all slots."""

    forks: list[AblationSplit]
    owners: Tensor
    """int64 [R], whose host each row of the logits is."""


@dataclass(frozen=True)
class CoalitionPass(ValidationPass):
    """A pass of which the host knows what its rows are."""

    coalitions: Coalitions
    """The R rows of the logits."""


class Validation:
    """Scores the hosts of a group.

    Args:
        is_shared: all hosts see the same training batches.
    """

    def __init__(self, model: HostModel, pool: SeedPool, device: torch.device, *, is_shared: bool) -> None:
        self._model, self._pool, self._is_shared = model, pool, is_shared
        self._max_chunk_bytes, self._max_calibration_bytes = MAX_CHUNK_BYTES, MAX_CALIBRATION_BYTES
        if device.type != "cpu":
            share = device_memory_bytes(device) // MAX_CHUNK_SHARE
            self._max_chunk_bytes = self._max_calibration_bytes = share
        self._n = 0
        self._columns: list[SlotColumns] = []
        self._plain: CoalitionPass | None = None
        self._forked: CoalitionPass | None = None

    def plan(self, topology: Topology, columns: list[SlotColumns]) -> None:
        """Plan the passes for an epoch's topology."""
        self._n = topology.stage.shape[0]
        self._columns = columns
        hosts = np.arange(self._n)
        self._plain = self._plan(Coalitions(hosts, np.zeros_like(hosts)))
        self._forked = self._plan(Coalitions.of(topology)) if topology.is_measured.any() else self._plain

    @torch.no_grad()
    def validate(
        self, examples: Examples, inputs: Sequence[Tensor], weights: Parameters, buffers: Parameters
    ) -> Score:
        """Score all hosts, and what their blended seeds contribute, on the same examples.

        Args:
            inputs: batches to measure statistics on, see `measure`.
            buffers: take those of the hosts with all their seeds.
        """
        assert self._forked is not None, "plan comes first"
        statistics = self.measure(inputs, self._forked, weights)
        for name, values in buffers.items():
            values.copy_(statistics[name][: self._n])
        return self._run(examples, self._forked, weights, statistics)

    @torch.no_grad()
    def test(self, examples: Examples, weights: Parameters, buffers: Parameters) -> Score:
        """Score all hosts by the statistics that `validate` measured, without contributions."""
        assert self._plain is not None, "plan comes first"
        return self._run(examples, self._plain, weights, buffers)

    @torch.no_grad()
    def values(
        self, examples: Examples, inputs: Sequence[Tensor], weights: Parameters, wanted: Coalitions
    ) -> Tensor:
        """Accuracy of each coalition: float64 [M] on the device, in the order they were asked for.

        Args:
            inputs: batches to measure statistics on, see `measure`.
        """
        parts, places = [], []
        for place in self._portions(inputs, wanted):
            part = Coalitions(wanted.owners[place], wanted.removed[place])
            parts.append(self._values(examples, inputs, weights, part))
            places.append(place)
        order = np.argsort(np.concatenate(places))
        found = torch.cat(parts)
        return found[upload(order, found.device)]

    def _portions(self, inputs: Sequence[Tensor], wanted: Coalitions) -> Iterator[Codes]:
        """Places of the coalitions that are measured together; those of one host always are."""
        order = np.argsort(wanted.owners, kind="stable")
        if not inputs:
            yield order
            return
        batch, itemsize = inputs[0].shape[0], self._columns[0].alpha.element_size()
        rows = max(1, self._max_calibration_bytes // (batch * self._model.widest * itemsize))
        _, counts = np.unique(wanted.owners, return_counts=True)
        start = stop = 0
        for count in counts.tolist():
            if stop > start and stop + count - start > rows:
                yield order[start:stop]
                start = stop
            stop += count
        yield order[start:stop]

    def _values(
        self, examples: Examples, inputs: Sequence[Tensor], weights: Parameters, wanted: Coalitions
    ) -> Tensor:
        planned = self._plan(wanted)
        statistics = self.measure(inputs, planned, weights)
        widest = max(len(planned.owners), *(fork.rows for fork in planned.forks))
        correct = torch.zeros_like(planned.owners)
        for labels, logits in self._chunks(examples, planned, weights, statistics, widest):
            correct += (logits.argmax(2) == labels).sum(1)
        slots = len(planned.forks)
        made = planned.coalitions.at(slots)
        order = np.argsort(made)
        rows = order[np.searchsorted(made, wanted.at(slots), sorter=order)]
        place = upload(rows, correct.device)
        return correct[place].double() / _by_row(examples.answers, planned.owners[place])

    def measure(self, inputs: Sequence[Tensor], planned: ValidationPass, weights: Parameters) -> Parameters:
        """Statistics of batch norms by name, [R, ...] for the R rows that come into their block.

        Args:
            inputs: [B, n*C, H, W] each, or [B, C, H, W] where all hosts see the same.
        """
        statistics: Parameters = {}
        *before, last = planned.forks
        weights = self._pool.take([fork.runs for fork in planned.forks], weights)
        for batches, batch in enumerate(inputs, 1):
            x, first = batch, planned.forks[0].owners
            if first is not None and not self._is_shared:
                x = take_rows(x, self._n, first)
            for i, fork in enumerate(before):
                x = self._model.measure_block(i, x, self._weights(i, fork, weights), statistics, batches)
                x = self._branch(i, x, fork, weights)
            rows = self._weights(len(before), last, weights)
            self._model.measure_block(len(before), x, rows, statistics, batches)
        return statistics

    def _run(
        self, examples: Examples, planned: CoalitionPass, weights: Parameters, statistics: Parameters
    ) -> Score:
        losses, correct = [], torch.zeros_like(planned.owners)
        for labels, logits in self._chunks(examples, planned, weights, statistics, rows=self._n):
            losses.append(host_losses(labels, logits, self._n))
            correct += (logits.argmax(2) == labels).sum(1)
        by_host, answers = torch.cat(losses, dim=1), examples.answers
        loss = by_host.mean(1) if isinstance(answers, int) else by_host.sum(1) / answers
        return self._score(loss, correct, answers, planned)

    def _plan(self, wanted: Coalitions) -> CoalitionPass:
        """The tree of the coalitions' prefixes; hosts with all their seeds come first, in order."""
        device = self._columns[0].device
        owners = np.unique(wanted.owners)
        rows = pack(owners, np.zeros_like(owners))
        forks = []
        for slot, column in enumerate(self._columns):
            owners, _ = unpack(rows)
            following = wanted.at(slot)
            kept, spawn = are_in(rows, following), are_in(rows | 1 << slot, following)
            going = np.concatenate([np.flatnonzero(kept), np.flatnonzero(spawn)])
            running = column.blended[owners[going]] & (np.arange(len(going)) < kept.sum())
            owned, taken = upload_together([owners, going], device)
            forks.append(
                AblationSplit(
                    rows=len(rows),
                    owners=None if np.array_equal(owners, np.arange(self._n)) else owned,
                    going=None if np.array_equal(going, np.arange(len(rows))) else taken,
                    runs=self._pool.gather(slot, column, owners[going], running),
                )
            )
            rows = np.concatenate([rows[kept], rows[spawn] | 1 << slot])
        ends = Coalitions(*unpack(rows))
        return CoalitionPass(forks, upload(ends.owners, device), ends)

    def _chunks(
        self,
        examples: Examples,
        planned: ValidationPass,
        weights: Parameters,
        statistics: Parameters,
        rows: int,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Labels [L], or [R, L] where each env has its own examples, and logits [R, L, classes].

        As many examples at a time as fit a CPU's cache for `rows`, or a share of a GPU's memory.
        """
        for x, labels in self.spans(examples, rows, weights):
            yield self.logits(x, labels, examples.absent, planned, weights, statistics)

    def spans(self, examples: Examples, rows: int, weights: Parameters) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels, at a time as many examples as fit for `rows` rows."""
        dtype = weights[self._model.head_names[0]].dtype
        size = max(1, self._max_chunk_bytes // (rows * self._model.widest * dtype.itemsize))
        for start in range(0, len(examples), size):
            yield examples.span(start, start + size)

    def logits(
        self,
        x: Tensor,
        labels: Tensor,
        absent: Tensor | None,
        planned: ValidationPass,
        weights: Parameters,
        statistics: Parameters,
    ) -> tuple[Tensor, Tensor]:
        """Labels [L] or [R, L] and logits [R, L, classes] of some examples, see `Examples`."""
        dtype = weights[self._model.head_names[0]].dtype
        first = planned.forks[0].owners
        if labels.dim() > 1:
            labels = labels[planned.owners]
            x = x if first is None else take_rows(x, self._n, first)
        logits = self._forward(x, planned, weights, statistics).to(dtype)
        if absent is not None:
            logits = logits.masked_fill(absent[planned.owners].unsqueeze(1), torch.finfo(dtype).min)
        return labels, logits

    def _forward(
        self, x: Tensor, planned: ValidationPass, weights: Parameters, statistics: Parameters
    ) -> Tensor:
        """Logits [R, L, classes] of one chunk of examples."""
        weights = self._pool.take([fork.runs for fork in planned.forks], weights)
        for i, fork in enumerate(planned.forks):
            tensors = self._model.folded(i, self._weights(i, fork, weights), statistics)
            x = self._branch(i, self._model.eval_block(i, x, *tensors), fork, weights)
        head = {name: weights[name].index_select(0, planned.owners) for name in self._model.head_names}
        return self._model.head(x, head)

    def _weights(self, i: int, fork: AblationSplit, weights: Parameters) -> Parameters:
        """Weights of block i, for each row that comes into it."""
        if fork.owners is None:
            return weights
        return {name: weights[name].index_select(0, fork.owners) for name in self._model.block_names(i)}

    def _branch(self, i: int, x: Tensor, fork: AblationSplit, weights: Parameters) -> Tensor:
        """Output of slot i, from its block's output: rows with the seed, then those without."""
        if fork.going is None:
            return self._pool.run(i, x, fork.rows, fork.runs, weights)
        x = take_rows(x, fork.rows, fork.going)
        return self._pool.run(i, x, len(fork.going), fork.runs, weights)

    def _score(self, loss: Tensor, correct: Tensor, answers: int | Tensor, planned: CoalitionPass) -> Score:
        accuracy = correct.double() / _by_row(answers, planned.owners)
        device, slots = accuracy.device, len(planned.forks)
        absent = planned.coalitions.removed[:, None] >> np.arange(slots) & 1
        lost = accuracy[planned.owners] - accuracy
        contribution = accuracy.new_full((self._n, slots), float("nan"))
        interaction = accuracy.new_full((self._n, slots, slots), float("nan"))
        single = np.flatnonzero(absent.sum(1) == 1)
        if len(single):
            rows, slot = upload_together([single, absent[single].argmax(1)], device)
            contribution[planned.owners[rows], slot] = lost[rows]
        pairs = np.flatnonzero(absent.sum(1) == 2)
        if len(pairs):
            i, j = np.nonzero(absent[pairs])[1].reshape(-1, 2).T
            rows, first, second = upload_together([pairs, i, j], device)
            owners = planned.owners[rows]
            second_difference = contribution[owners, first] + contribution[owners, second] - lost[rows]
            interaction[owners, first, second] = second_difference
            interaction[owners, second, first] = second_difference
        return Score(loss.float(), accuracy[: self._n].float(), contribution.float(), interaction.float())


def host_losses(labels: Tensor, logits: Tensor, n: int) -> Tensor:
    """[n, L] of the first n rows; 0 where a label does not count.

    Args:
        labels: [L], or [R, L].
        logits: [R, L, classes].
    """
    own = labels.repeat(n) if labels.dim() == 1 else labels[:n].flatten()
    predicted = logits[:n].flatten(0, 1)
    return F.cross_entropy(predicted, own, reduction="none", ignore_index=NO_LABEL).view(n, -1)


def _by_row(answers: int | Tensor, owners: Tensor) -> int | Tensor:
    """Answers of each row's host, where they differ."""
    return answers if isinstance(answers, int) else answers[owners]


def are_in(values: Codes, known: Codes) -> NDArray[np.bool_]:
    """np.isin for few numbers, of which it takes five times as long."""
    ordered = np.sort(known)
    places = np.searchsorted(ordered, values)
    found: NDArray[np.bool_] = ordered.take(places, mode="clip") == values
    return found
