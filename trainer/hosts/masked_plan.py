"""The masked plan: each blueprint on a capacity of rows, one of a few sizes that has room for its seeds.

Rows that need it not are picked out by masks, so that a few sequences of operations serve all topologies,
each captured as a graph of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, Style
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs, copy_all_, iter_tensors, map_tensors
from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.compute.stacked_ops import Parameters
from esper_overwatch.trainer.seeds.blend import SeedPlaces
from esper_overwatch.trainer.seeds.table import SlotTable, is_in

from .owned_numbers import OwnedNumbers
from .seed_pool import SeedPool
from .slot_plan import Codes, MaskedRun, Runs, SlotColumns

Capacities = tuple[tuple[int, ...], ...]
"""Rows for each blueprint, by slot; none in a slot where no seed is."""
SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1.0)
"""Of a slot's rows, that a blueprint may have room for: few, since each combination has CUDA graphs of its
own."""
Decay = dict[str, Tensor]
"""[n, P] for each module that is trained."""


class MaskedPlan:
    """Plans the training epochs of a group.

    Args:
        table: the group's rows of it.
        state: weights and momentum of the group, always the same tensors.
        decay: of some modules by slot, from the table.

    Attributes:
        shares: see `capacities`.
    """

    def __init__(
        self,
        pool: SeedPool,
        table: SlotTable,
        state: tuple[Parameters, Parameters],
        dtype: torch.dtype,
        decay: Callable[[list[dict[str, str]]], Decay],
    ) -> None:
        self._pool, self._table, self._state, self._dtype, self._decay = pool, table, state, dtype, decay
        self.shares: Sequence[float] = SHARES
        self._program: Callable[[Tensor, tuple[int, ...], Capacities], tuple[Runs, Decay]] = self._prepare
        self._held: dict[Capacities, tuple[Runs, Decay]] = {}
        """What was planned, in the memory that graphs know."""

    def capture(self, name: str, graphs: CudaGraphs) -> None:
        """Let it be replayed as graphs; the name is that of the group."""
        weights, momentum = self._state
        self._program = graphs.wrap(
            f"the plan of {name}",
            self._prepare,
            changes=lambda: [*weights.values(), *momentum.values()],
            lends=True,
        )

    def plan(self, slots: Sequence[SlotColumns]) -> tuple[Runs, Decay]:
        """Plan an epoch: zero unused rows; returns the runs and the decay of all seeds."""
        kinds = [np.where(columns.live, columns.blueprint, -1) for columns in slots]
        chosen = capacities(kinds, len(self._pool.kinds), self.shares)
        rows, places = zip(*map(placed, kinds, chosen), strict=True)
        n = len(kinds[0])
        numbers = self._pool.find_numbers(rows, [np.arange(n)] * len(rows), chosen, n)
        padding = [*rows, *places, numbers]
        sizes = tuple(len(part) for part in padding)
        made = self._program(upload(np.concatenate(padding), self._table.stage.device), sizes, chosen)
        if chosen not in self._held:
            runs = map_tensors(made[0], torch.clone)
            decay = next((held for _, held in self._held.values()), None)
            self._held[chosen] = runs, map_tensors(made[1], torch.clone) if decay is None else decay
        copy_all_(list(iter_tensors(self._held[chosen])), list(iter_tensors(made)))
        return self._held[chosen]

    def _prepare(self, padding: Tensor, sizes: tuple[int, ...], chosen: Capacities) -> tuple[Runs, Decay]:
        """See `plan`.

        Args:
            padding: int64, rows and places of each slot, see `placed`, then `OwnedNumbers.taken`.
            sizes: of these parts.
        """
        self._pool.zero_unused_rows(*self._state, self._table)
        # A graph's results must not lie in the memory of what it is given.
        *placing, taken = torch.split(padding.clone(), list(sizes))
        stage, style, alpha = (
            column.t().reshape(-1) for column in (self._table.stage, self._table.style, self._table.alpha)
        )
        runs = masked_runs(
            placing,
            chosen,
            isolated=is_in(stage, ISOLATED),
            blended=is_in(stage, BLENDED),
            style=style,
            alpha=alpha.to(self._dtype),
            numbers=self._pool.own_numbers(taken, self._table) if any(chosen) else None,
        )
        return runs, self._decay([self._pool.modules(slot) for slot in range(len(chosen))])


def capacities(kinds: Sequence[Codes], num_kinds: int, shares: Sequence[float] = SHARES) -> Capacities:
    """Rows for each blueprint, by slot: shares of a slot's rows that have room for all slots' seeds.

    Where nothing runs in any slot there are none.

    Args:
        kinds: by slot [R], the blueprint that each row runs; -1 = none.
        shares: to choose from, ascending to 1.
    """
    counts = np.stack([np.bincount(kind + 1, minlength=num_kinds + 1)[1:] / len(kind) for kind in kinds])
    if not counts.any():
        return ((),) * len(kinds)
    chosen = [next(share for share in shares if share >= most) for most in counts.max(axis=0)]
    return tuple(tuple(_rows_of(share, len(kind)) for share in chosen) for kind in kinds)


def _rows_of(share: float, rows: int) -> int:
    """At least two, where there are as many: torch convolves one network by other kernels than several."""
    return max(math.ceil(share * rows), min(rows, 2))


def placed(kind: Codes, capacity: Sequence[int]) -> tuple[Codes, Codes]:
    """Rows that run each blueprint in turn, those that do not need it last, int64 [k]; and which of these
    is each row's own, int64 [R], 0 where it runs none.

    Args:
        kind: [R], the blueprint that each row runs; -1 = none.
        capacity: rows for each blueprint.
    """
    order = [np.argsort(kind != b, kind="stable")[:count] for b, count in enumerate(capacity)]
    rows = np.concatenate([kind[:0], *order])
    own = np.flatnonzero(kind[rows] == np.repeat(np.arange(len(capacity)), capacity))
    places = np.zeros(len(kind), dtype=np.int64)
    places[rows[own]] = own
    return rows, places


def masked_runs(
    placing: Sequence[Tensor],
    chosen: Capacities,
    *,
    isolated: Tensor,
    blended: Tensor,
    style: Tensor,
    alpha: Tensor,
    numbers: OwnedNumbers | None,
) -> Runs:
    """The runs of all slots, whose columns [R] on the device lie one behind the other.

    Args:
        placing: int64 [k] of each slot, then [R] of each, see `placed`.
    """
    slots = len(chosen)
    alpha = alpha.masked_fill(~blended, 0.0)
    audible = alpha != 0.0
    columns = (style == Style.MULTIPLY, isolated, audible, alpha, audible & (style == Style.GATE))
    parts = zip(*(torch.split(column, [len(p) for p in placing[slots:]]) for column in columns), strict=True)
    runs: Runs = []
    for slot, (capacity, (*flags, alphas, gated)) in enumerate(zip(chosen, parts, strict=True)):
        seeds = SeedPlaces(
            capacity, placing[slot], placing[slots + slot], *(flag.unsqueeze(1) for flag in flags)
        )
        blueprints, own = tuple(enumerate(capacity)), None if slot else numbers
        runs.append([MaskedRun(seeds, blueprints, alphas, gated, own)] if capacity else [])
    return runs
