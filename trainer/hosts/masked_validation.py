"""Validation by operations that never change, whatever the topology, to be replayed as CUDA graphs.

The tree of `validation`, with as many rows at each slot as the budget of contributions allows at most; a row
that an epoch does not need is the first host once more. Each blueprint runs on a capacity of rows, see
`masked_plan`. What varies with the epoch is one row of numbers, copied to the device at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs, copy_all_
from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.compute.execution_plan import Amp
from esper_overwatch.trainer.compute.stacked_ops import Parameters
from esper_overwatch.trainer.data.task import Examples
from esper_overwatch.trainer.reward.shapley import pack, unpack
from esper_overwatch.trainer.seeds.table import SlotTable

from .masked_plan import Capacities, capacities, masked_runs, placed
from .owned_numbers import OwnedNumbers
from .precision import autocast
from .seed_pool import SeedPool
from .slot_plan import Codes, Topology
from .validation import AblationSplit, Coalitions, Score, Validation, ValidationPass, are_in, host_losses

COUNT_TOLERANCE = 0.01
"""Share of correct answers by which a replayed chunk may differ: near ties, rounded otherwise."""


class MaskedTree:
    """Sources of the rows of a pass, for n hosts with S slots.

    Args:
        pool: whose slots and blueprints these are.
        population: hosts among which the budget is spent.
        budget: see `contribution_schedule.select_contributions`.

    Attributes:
        rows: [S + 1], rows that come into each slot, and into the head.
    """

    def __init__(self, hosts: int, pool: SeedPool, population: int, budget: float) -> None:
        self._n, self._pool, self._slots = hosts, pool, (slots := len(pool.slots))
        self.rows = [hosts]
        for slot in range(slots):
            # A coalition without the seed of this slot goes on through all blocks behind it, one of them the
            # head; +1, since one is measured in any case, and since quotients are rounded.
            affordable = int(budget * population * (slots + 1) / (slots - slot)) + 1
            self.rows.append(hosts + min(hosts * (slot + 1) * (slot + 2) // 2, affordable))

    def pack(self, topology: Topology) -> tuple[Codes, Capacities]:
        """Pack what `unpack` needs of an epoch's topology into one row of numbers."""
        blueprint = np.where(topology.blended, topology.blueprint, -1)
        wanted = Coalitions.of(topology)
        rows = pack(np.arange(self._n), np.zeros(self._n, dtype=np.int64))
        moves: list[Codes] = []
        owners, kinds = [], []
        for slot in range(self._slots):
            following, room = wanted.at(slot), self.rows[slot + 1]
            kept = np.flatnonzero(are_in(rows, following))
            spawn = np.flatnonzero(are_in(rows | 1 << slot, following))
            running = blueprint[unpack(rows[kept])[0], slot]
            moves.append(_filled(np.concatenate([kept, spawn]), room))
            rows = np.concatenate([rows[kept], rows[spawn] | 1 << slot])
            owners.append(_filled(unpack(rows)[0], room))
            kinds.append(_filled(running, room, by=-1))
        chosen = capacities(kinds, len(self._pool.kinds))
        placing, places = zip(*map(placed, kinds, chosen), strict=True)
        seeds = [owner[row] for owner, row in zip(owners, placing, strict=True)]
        numbers = self._pool.find_numbers(seeds, owners, chosen, self._n)
        styles = [topology.style[owner, slot] for slot, owner in enumerate(owners)]
        columns = [np.concatenate(part) for part in (kinds, styles)]
        single, pairs = np.full((self._n, self._slots), -1), np.full((self._n, self._slots, self._slots), -1)
        order = np.argsort(rows)

        def find(hosts: Codes, removed: Codes) -> Codes:
            return order[np.searchsorted(rows, pack(hosts, removed), sorter=order)]

        hosts, first = np.nonzero(topology.is_measured)
        single[hosts, first] = find(hosts, 1 << first)
        hosts, first, second = np.nonzero(topology.pairs)
        pairs[hosts, first, second] = pairs[hosts, second, first] = find(hosts, 1 << first | 1 << second)
        parts = [numbers, *columns, *placing, *places, *moves, *owners, single, pairs]
        assert [part.shape for part in parts[1:]] == self._shapes(chosen)
        return np.concatenate([part.reshape(-1) for part in parts]), chosen

    def _shapes(self, chosen: Capacities) -> list[tuple[int, ...]]:
        """Of the parts that are packed behind the numbers: blueprints and styles; places, moves and owners.

        Then [n, S], the row of the host without the seed of that slot, and [n, S, S], of that without those
        two; -1 = not measured.
        """
        leaving = self.rows[1:]
        lengths = [sum(leaving), sum(leaving), *map(sum, chosen), *leaving * 3]
        return [*((count,) for count in lengths), (self._n, self._slots), (self._n, self._slots, self._slots)]

    def parts(self, packed: Tensor, chosen: Capacities) -> list[Tensor]:
        """The parts that are packed; last the rows of the logits' owners, `single` and `pairs`."""
        shapes = self._shapes(chosen)
        sizes = [math.prod(shape) for shape in shapes]
        numbers, *parts = torch.split(packed, [len(packed) - sum(sizes), *sizes])
        return [numbers, *(part.view(shape) for part, shape in zip(parts, shapes, strict=True))]

    def unpack(
        self, packed: Tensor, chosen: Capacities, table: SlotTable, dtype: torch.dtype
    ) -> ValidationPass:
        """The pass over the hosts of the table, whose alphas are read."""
        numbers, kinds, style, *views, _, _ = self.parts(packed, chosen)
        slots = self._slots
        moves, leaving = views[2 * slots : 3 * slots], views[3 * slots :]
        forks = zip(self.rows[:-1], [None, *leaving[:-1]], moves, strict=True)
        if not any(chosen):
            return ValidationPass([AblationSplit(*fork, []) for fork in forks], leaving[-1])
        alpha = torch.cat(
            [table.alpha[:, slot].index_select(0, owners) for slot, owners in enumerate(leaving)]
        )
        runs = masked_runs(
            views[: 2 * slots],
            chosen,
            isolated=torch.zeros_like(kinds, dtype=torch.bool),
            blended=kinds >= 0,
            style=style,
            alpha=alpha.to(dtype),
            numbers=OwnedNumbers(numbers),
        )
        each = zip(forks, runs, strict=True)
        return ValidationPass([AblationSplit(*fork, run) for fork, run in each], leaving[-1])


def _filled(numbers: Codes, room: int, by: int = 0) -> Codes:
    return np.concatenate([numbers, np.full(room - len(numbers), by)])


class MaskedValidation:
    """Scores the hosts of a group as `Validation.validate` does, in replayed graphs.

    Args:
        validation: whose blocks and chunks these are.
        tree: of its rows.
        table: of these hosts.
        state: weights and buffers of the hosts, always the same tensors.
        amp: what forward passes compute in.
    """

    def __init__(
        self,
        validation: Validation,
        tree: MaskedTree,
        table: SlotTable,
        state: tuple[Parameters, Parameters],
        amp: Amp,
    ) -> None:
        self._validation, self._tree, self._table, self._amp = validation, tree, table, amp
        self._weights, self._buffers = state
        self._dtype = next(iter(self._weights.values())).dtype
        self._statistics: Parameters = {}
        device = table.stage.device
        self._packed: dict[Capacities, Tensor] = {}
        """What an epoch's pass is made of, always in the same memory for graphs."""
        self._loss = torch.zeros(tree.rows[0], dtype=self._dtype, device=device)
        self._correct = torch.zeros(tree.rows[-1], dtype=torch.int64, device=device)
        self._programs = self._measure, self._add, self._score

    def capture(self, name: str, graphs: CudaGraphs, tolerance: float) -> None:
        """Let its parts be replayed as graphs.

        Args:
            name: of the group, as logs show it.
            tolerance: of losses and statistics.
        """
        self._programs = (
            graphs.wrap(
                f"the statistics of {name}",
                self._measure,
                tolerance=tolerance,
                changes=lambda: [
                    *self._packed.values(),
                    self._loss,
                    self._correct,
                    *self._statistics.values(),
                    *self._buffers.values(),
                ],
            ),
            graphs.wrap(
                f"the validation of {name}",
                self._add,
                tolerance=tolerance,
                count_tolerance=COUNT_TOLERANCE,
                changes=lambda: [self._loss, self._correct],
            ),
            graphs.wrap(f"the contributions of {name}", self._score, lends=True),
        )

    @torch.no_grad()
    def validate(self, topology: Topology, examples: Examples, inputs: Sequence[Tensor]) -> Score:
        """Score all hosts, and what their blended seeds contribute, on the same examples.

        Args:
            inputs: batches to measure statistics on, see `Validation.measure`.
        """
        measure, add, score = self._programs
        numbers, chosen = self._tree.pack(topology)
        packed = upload(numbers, self._table.stage.device)
        self._make_room(packed, chosen, inputs)
        measure(packed, chosen, list(inputs))
        for x, labels in self._validation.spans(examples, max(self._tree.rows[:-1]), self._weights):
            add(x, labels, examples.absent, chosen)
        answers = examples.answers
        if isinstance(answers, int):
            answers = torch.full_like(self._correct[: self._tree.rows[0]], answers)
        return score(answers, chosen)

    def _make_room(self, packed: Tensor, chosen: Capacities, inputs: Sequence[Tensor]) -> None:
        """Memory of what an epoch measures, which graphs know: made once."""
        if chosen not in self._packed:
            self._packed[chosen] = packed.clone()
        if self._statistics:
            return
        with autocast(self._amp, packed.device):
            made = self._validation.measure(inputs[:1], self._planned(chosen), self._weights)
        self._statistics = {name: torch.zeros_like(values) for name, values in made.items()}

    def _planned(self, chosen: Capacities) -> ValidationPass:
        return self._tree.unpack(self._packed[chosen], chosen, self._table, self._dtype)

    @torch.no_grad()
    def _measure(self, packed: Tensor, chosen: Capacities, inputs: list[Tensor]) -> None:
        """Begin an epoch: statistics of batch norms by these inputs, nothing counted yet."""
        self._packed[chosen].copy_(packed)
        self._loss.zero_()
        self._correct.zero_()
        with autocast(self._amp, packed.device):
            made = self._validation.measure(inputs, self._planned(chosen), self._weights)
        own = [values[: self._tree.rows[0]] for values in made.values()]
        targets = [part[name] for part in (self._statistics, self._buffers) for name in made]
        copy_all_(targets, [*made.values(), *own])

    @torch.no_grad()
    def _add(self, x: Tensor, labels: Tensor, absent: Tensor | None, chosen: Capacities) -> None:
        """Add the losses and right answers of some examples."""
        with autocast(self._amp, x.device):
            labels, logits = self._validation.logits(
                x, labels, absent, self._planned(chosen), self._weights, self._statistics
            )
            self._loss.add_(host_losses(labels, logits, self._tree.rows[0]).sum(1))
            self._correct.add_((logits.argmax(2) == labels).sum(1))

    @torch.no_grad()
    def _score(self, answers: Tensor, chosen: Capacities) -> Score:
        """Score of all that was added.

        Args:
            answers: int64 [n], labels that a mean is over.
        """
        *_, owners, single, pairs = self._tree.parts(self._packed[chosen], chosen)
        accuracy = self._correct.double() / answers[owners]
        whole = accuracy[: len(answers)]
        contribution = _less(whole[:, None], accuracy, single)
        lost = _less(whole[:, None, None], accuracy, pairs)
        interaction = contribution.unsqueeze(2) + contribution.unsqueeze(1) - lost
        return Score(
            loss=(self._loss / answers).float(),
            accuracy=whole.float(),
            contribution=contribution.float(),
            interaction=interaction.float(),
        )


def _less(whole: Tensor, accuracy: Tensor, rows: Tensor) -> Tensor:
    """`whole` less the accuracy of these rows; NaN where there is none."""
    return (whole - accuracy[rows.clamp_min(0)]).where(rows >= 0, float("nan"))
