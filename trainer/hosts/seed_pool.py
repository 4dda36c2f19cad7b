"""The seeds of a group: a fixed pool of parameters per slot and blueprint, and how a slot is run.

Germinating, pruning and fossilising change rows of tensors, never their shapes. Rows without a seed are 0,
weights and momentum alike. All tensors of a module (a blueprint in a slot) lie in one [n, P], so that
gathering, updating and clearing it is one operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, Stage, Style
from esper_overwatch.trainer.compute.convolutions import GROUPED, Conv
from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.compute.joined_rows import zero_rows_
from esper_overwatch.trainer.compute.native_seeds import SeedKinds, run_seeds
from esper_overwatch.trainer.compute.stacked_ops import DrawTable, Init, Parameters, initialise
from esper_overwatch.trainer.seeds.blend import (
    blend_seeds,
    gate_alpha,
    gate_specs,
    gather_rows,
    graft,
    take_seen,
)
from esper_overwatch.trainer.seeds.image_blueprints import Blueprint, verify
from esper_overwatch.trainer.seeds.table import SlotTable, is_in

from .model import HostModel
from .owned_numbers import OwnedNumbers, find_numbers, take_numbers
from .slot_plan import (
    Codes,
    MaskedRun,
    NativeRun,
    Run,
    Runs,
    SlotColumns,
    SlotRun,
    Topology,
    gather,
    gather_natively,
)

GATE_MODULE = "gate"
"""Stands where the blueprint's name would in the names of a slot's gate."""
ALONE_MIN_NUMBERS = 1 << 16
"""Numbers in a seed's activation from which on a CPU gains little by running several at once: seeds are then
run one by one, which is cheaper than running a single one twice."""

MAX_DRAWN = 1 << 22
"""Numbers of a group's newborns that are drawn together on a GPU: 32 MiB of random words."""
DrawTables = list[tuple[list[str], DrawTable]]
"""Names among the weights, and how they are drawn."""


class SeedPool:
    """Names, shapes and use of all seed parameters in the slots of a model.

    Args:
        model: the host architecture.
        kinds: blueprints on offer, in the order of the table's codes.
        batch: examples in a step.
        conv: how seeds convolve.
        natively: whether our own kernel runs what it can of the seeds; where weights are float32, on a CPU.

    Raises:
        BlueprintError: a blueprint does not keep the shape of a slot, or is not the identity it claims to be.
    """

    def __init__(
        self,
        model: HostModel,
        kinds: Sequence[Blueprint],
        batch: int,
        conv: Conv = GROUPED,
        *,
        natively: bool = False,
    ) -> None:
        self._conv, self._natively = conv, natively
        self.kinds = list(kinds)
        self._convolving = frozenset(code for code, kind in enumerate(kinds) if kind.convolves)
        self._large = [
            batch * block.channels * math.prod(block.size) >= ALONE_MIN_NUMBERS for block in model.blocks
        ]
        self._codes = {kind.name: code for code, kind in enumerate(kinds)}
        assert len(self._codes) == len(kinds), "blueprints differ in their names"
        self.slots = [f"r{i % model.rows}c{i // model.rows}" for i in range(len(model.blocks))]
        self._causal = model.causal
        self._channels: list[int] = []
        self._kinds: list[list[Blueprint]] = []
        """Blueprints that are run in each slot."""
        self._modules: list[dict[str, dict[str, Init]]] = []
        self._layers: list[dict[str, Tensor]] = []
        """Of what our own kernel runs, as it takes them."""
        for block in model.blocks:
            here = [kind.at(block.channels, block.size) for kind in kinds]
            for kind in here:
                verify(kind, block.channels, block.size, causal=model.causal)
            self._kinds.append(here)
            self._channels.append(block.channels)
            specs = {kind.name: kind.specs(block.channels) for kind in here}
            self._modules.append({**specs, GATE_MODULE: gate_specs(block.channels)})
            native = [kind for kind in here if kind.layers]
            self._layers.append({kind.name: _layer_table(kind, block.channels) for kind in native})
        self._is_native = np.array([kind.layers is not None for kind in kinds])
        self._is_matrix: dict[str, Tensor] = {}
        """Made once, since a CUDA graph may hold no copy from the host."""
        self._places = {self.name(s, m): (s, m) for s, modules in enumerate(self._modules) for m in modules}

    def specs(self) -> dict[str, Init]:
        """All modules of the pool, named `slot.blueprint` or `slot.gate`, as one row of numbers each."""
        return {name: Init((self._count(slot, module),)) for name, (slot, module) in self._places.items()}

    def name(self, slot: int, module: str) -> str:
        """Name of a slot's module among the weights."""
        return f"{self.slots[slot]}.{module}"

    def gather(self, slot: int, columns: SlotColumns, owners: Codes, run: NDArray[np.bool_]) -> list[Run]:
        """`slot_plan.gather` for the seeds of a slot, and `gather_natively` for those of our own kernel."""
        natively = run & False
        runs: list[Run] = []
        if self._natively and columns.alpha.dtype == torch.float32 and columns.device.type == "cpu":
            natively = run & self._is_native[columns.blueprint[owners]]
        if natively.any():
            runs.append(gather_natively(columns, owners, natively))
        if (rest := run & ~natively).any():
            apart = self._large[slot] and columns.device.type == "cpu"
            runs += gather(columns, owners, rest, self._convolving, apart=apart)
        return runs

    def trained_modules(self, slot: int, runs: Sequence[Run]) -> dict[str, str]:
        """The modules that some runs of a slot train: name among the weights -> blueprint or gate."""
        modules = [self.kinds[b].name for run in runs for b, _ in run.blueprints]
        if any(run.gated is not None for run in runs):
            modules.append(GATE_MODULE)
        return self._named(slot, modules)

    def modules(self, slot: int) -> dict[str, str]:
        """All modules of a slot that have something to train, likewise."""
        return self._named(slot, [*self._codes, GATE_MODULE])

    def _named(self, slot: int, modules: Sequence[str]) -> dict[str, str]:
        return {self.name(slot, module): module for module in modules if self._count(slot, module)}

    def tensors(self, name: str) -> list[str]:
        """Full names `slot.blueprint.tensor` of what is in a module called `name` among the weights."""
        slot, module = self._places[name]
        return [f"{name}.{tensor}" for tensor in self._modules[slot][module]]

    def matrix_numbers(self, name: str, device: torch.device) -> Tensor:
        """bool [P]: which numbers of the module called `name` are of tensors with two dimensions or more."""
        if name not in self._is_matrix:
            slot, module = self._places[name]
            specs = self._modules[slot][module].values()
            flags = np.concatenate([np.full(spec.count, len(spec.shape) > 1) for spec in specs])
            self._is_matrix[name] = upload(flags, device)
        return self._is_matrix[name]

    def unpacked(self, weights: Parameters) -> Parameters:
        """Views of all tensors by their full names; other weights stay as they are."""
        out: Parameters = {}
        for name, values in weights.items():
            if name in self._places:
                views = self._views(*self._places[name], values).values()
                out |= dict(zip(self.tensors(name), views, strict=True))
            else:
                out[name] = values
        return out

    def _rows_with(self, table: SlotTable, seeds: Tensor, gates: Tensor) -> Tensor:
        """bool [T, n] for all modules: where there is one of these seeds, or a gate of these, bool [n, S]."""
        codes = torch.arange(len(self.kinds), device=seeds.device).unsqueeze(1)
        kinds = (table.blueprint.t().unsqueeze(1) == codes) & seeds.t().unsqueeze(1)
        gated = gates & (table.style == Style.GATE)
        return torch.cat([kinds, gated.t().unsqueeze(1)], dim=1).flatten(0, 1)

    def owners(self, table: SlotTable) -> dict[str, Tensor]:
        """bool [n] by name among the weights: who has a seed of this blueprint, or one of style GATE."""
        live = is_in(table.stage, (*ISOLATED, *BLENDED))
        return dict(zip(self._places, self._rows_with(table, live, live), strict=True))

    def learners(self, table: SlotTable) -> dict[str, Tensor]:
        """`owners` who get a gradient of it, so not frozen seeds, nor gates of isolated ones."""
        live = is_in(table.stage, (*ISOLATED, *BLENDED)) & ~table.pruning
        blended = live & is_in(table.stage, BLENDED)
        return dict(zip(self._places, self._rows_with(table, live, blended), strict=True))

    def without_tensors(self, slot: int) -> list[str]:
        """Blueprints that have nothing to train in a slot."""
        return [kind.name for kind in self.kinds if not self._count(slot, kind.name)]

    def parameters(self) -> Tensor:
        """int64 [S, K]: numbers that a seed of each blueprint adds in each slot."""
        counts = [[self._count(m, kind.name) for kind in self.kinds] for m in range(len(self.slots))]
        return torch.tensor(counts)

    def gate_parameters(self) -> Tensor:
        """int64 [S]: numbers that a seed of style GATE adds beside."""
        return torch.tensor([self._count(slot, GATE_MODULE) for slot in range(len(self.slots))])

    @torch.no_grad()
    def germinate(self, weights: Parameters, topology: Topology, slot: int, keys: Tensor) -> None:
        """Draw the weights of the seeds born in this epoch, each from its host's key (int64 [n])."""
        born = topology.stage[:, slot] == Stage.GERMINATED
        for b, kind in enumerate(self._kinds[slot]):
            mine = born & (topology.blueprint[:, slot] == b)
            self._draw(weights, slot, kind.name, mine, keys, partial(kind.newborn, self._channels[slot]))
        mine = born & (topology.style[:, slot] == Style.GATE)
        self._draw(
            weights, slot, GATE_MODULE, mine, keys, partial(initialise, self._modules[slot][GATE_MODULE])
        )

    @property
    def draws_by_key(self) -> bool:
        """True if newborns can be drawn for all hosts alike: no package has a function of its own for it."""
        return all(kind.draw is None for here in self._kinds for kind in here)

    @torch.no_grad()
    def germinate_where_born(
        self, weights: Parameters, table: SlotTable, keys: Tensor, draws: DrawTables
    ) -> None:
        """`germinate` of all that the table holds; reads nothing of the topology on the host.

        Args:
            keys: int64 [n, S], of each slot's seed.
            draws: see `draw_tables`.
        """
        born = table.stage == Stage.GERMINATED
        mine = dict(zip(self._places, self._rows_with(table, born, born).unsqueeze(2), strict=True))
        for names, drawn in draws:
            counts = [weights[name].shape[1] for name in names]
            for name, fresh in zip(names, torch.split(drawn.draw(keys), counts, dim=1), strict=True):
                torch.where(mine[name], fresh, weights[name], out=weights[name])

    def draw_tables(self, weights: Parameters, hosts: int) -> DrawTables:
        """Draws of all modules that have something to train, as many together as `MAX_DRAWN` allows.

        Made once for a group, since a CUDA graph may hold no copy from the host.
        """
        parts: list[dict[str, Sequence[Init]]] = [{}]
        drawn = 0
        for name, (slot, module) in self._places.items():
            if not (count := hosts * self._count(slot, module)):
                continue
            if drawn and drawn + count > MAX_DRAWN:
                parts, drawn = [*parts, {}], 0
            parts[-1][name] = list(self._modules[slot][module].values())
            drawn += count
        found: DrawTables = []
        for part in parts:
            example = weights[next(iter(part))]
            table = DrawTable.of([(self._places[name][0], specs) for name, specs in part.items()], example)
            found.append((list(part), table))
        return found

    @torch.no_grad()
    def zero_unused_rows(self, weights: Parameters, momentum: Parameters, table: SlotTable) -> None:
        """Zero the rows of absent seeds, and the momentum of newborn and frozen ones."""
        live = is_in(table.stage, (*ISOLATED, *BLENDED))
        learning = live & (table.stage != Stage.GERMINATED) & ~table.pruning
        for tensors, kept in ((weights, live), (momentum, learning)):
            zero_rows_([tensors[name] for name in self._places], ~self._rows_with(table, kept, kept))

    def run(
        self, slot: int, h: Tensor, n: int, runs: Sequence[Run], weights: Parameters, *, keep: bool = False
    ) -> Tensor:
        """Run and blend the seeds of a slot as planned: [B, n*C, H, W] from the same.

        Args:
            keep: whether `h` is needed afterwards, or its gradient.
        """
        stacked = [run for run in runs if isinstance(run, SlotRun)]
        for run in runs:
            if isinstance(run, MaskedRun):
                h = self._run_masked(slot, h, n, run, weights)
            elif isinstance(run, NativeRun):
                kinds = self._seed_kinds(slot, run, weights)
                h = run_seeds(h, n, run.rows, kinds, keep=keep or bool(stacked))
        if not stacked:
            return h
        segments = [run.segment for run in stacked]
        h, seen = gather_rows(h, n, segments)
        outputs, strengths = [], []
        for run, x in zip(stacked, seen, strict=True):
            outputs.append(self._seed_outputs(slot, run, x.by_seeds, weights))
            gated, gates = run.gated, None
            if gated is not None:
                gated = gated & (run.alpha != 0.0)
                gates = self._owner_weights(slot, GATE_MODULE, run.owners, weights)
            strengths.append(self._blend_strength(run.alpha, gated, x.by_gates, gates))
        return graft(h, n, segments, seen, outputs, strengths)

    def _seed_kinds(self, slot: int, run: NativeRun, weights: Parameters) -> SeedKinds:
        modules = [self.kinds[b].name for b, _ in run.blueprints]
        gates = [] if run.gated is None else [GATE_MODULE]
        numbers = [weights[self.name(slot, module)] for module in (*modules, *gates)]
        return SeedKinds([self._layers[slot][module] for module in modules], numbers)

    def find_numbers(
        self, seeds: Sequence[Codes], gates: Sequence[Codes], chosen: Sequence[Sequence[int]], n: int
    ) -> Codes:
        """The numbers of n hosts' weights that are used, see `OwnedNumbers.taken`.

        Args:
            seeds: by slot int64 [k], hosts whose seeds are run, by blueprint.
            gates: by slot int64 [R], hosts whose gate each row has.
            chosen: how many seeds of each blueprint are run, by slot.
        """
        found: list[tuple[dict[str, Init], Codes]] = []
        for modules, rows, owners, capacity in zip(self._modules, seeds, gates, chosen, strict=True):
            if capacity:
                by_module = (*np.split(rows, np.cumsum(capacity)[:-1]), owners)
                found += zip(modules.values(), by_module, strict=True)
        return find_numbers(n, found)

    def own_numbers(self, taken: Tensor, table: SlotTable) -> OwnedNumbers:
        """Plan the use of these numbers in training."""
        widths = tuple(spec.shape[0] for spec in self.specs().values())
        return OwnedNumbers.of(taken, torch.stack(list(self.learners(table).values())), widths)

    def take(self, runs: Runs, weights: Parameters) -> Parameters:
        """The weights, and by full names the tensors [k, ...] of masked runs: all slots have one, or none."""
        masked = [run for planned in runs for run in planned if isinstance(run, MaskedRun)]
        if not masked or masked[0].numbers is None:
            return weights
        counts = [k for run in masked for k in (*run.seeds.counts, len(run.alpha))]
        specs = [self._modules[slot][module] for slot, module in self._places.values()]
        shapes = [(k, *spec.shape) for k, part in zip(counts, specs, strict=True) for spec in part.values()]
        flat = [weights[name] for name in self._places if name in weights]
        names = [tensor for name in self._places for tensor in self.tensors(name)]
        return weights | dict(zip(names, take_numbers(masked[0].numbers, shapes, flat), strict=True))

    def _run_masked(self, slot: int, h: Tensor, n: int, run: MaskedRun, weights: Parameters) -> Tensor:
        plain = h.device.type != "cpu" and not self._causal
        h, at_gates, seen = take_seen(h, n, run.seeds, plain=plain)
        *seeds, gates = (
            {tensor: weights[f"{self.name(slot, module)}.{tensor}"] for tensor in specs}
            for module, specs in self._modules[slot].items()
        )
        each = zip(self._kinds[slot], seen, seeds, strict=True)
        made = [
            kind.forward(x, own, self._conv) - x if kind.change is None else kind.change(x, own, self._conv)
            for kind, x, own in each
        ]
        strength = self._blend_strength(run.alpha, run.gated, at_gates, gates)
        return blend_seeds(h, n, run.seeds, made, strength, plain=plain)

    def _seed_outputs(self, slot: int, run: SlotRun, x: Tensor, weights: Parameters) -> Tensor:
        ((b, _),) = run.blueprints
        kind = self._kinds[slot][b]
        return kind.forward(x, self._owner_weights(slot, kind.name, run.owners, weights), self._conv)

    def _blend_strength(
        self, alpha: Tensor, gated: Tensor | None, x: Tensor, gates: Parameters | None
    ) -> Tensor:
        alpha = alpha.view(1, 1, 1, -1)
        if gated is None or gates is None:
            return alpha
        return gate_alpha(alpha, gated, x, gates, causal=self._causal)

    def _draw(
        self,
        weights: Parameters,
        slot: int,
        module: str,
        mine: NDArray[np.bool_],
        keys: Tensor,
        newborn: Callable[[Tensor, torch.dtype], Parameters],
    ) -> None:
        if not mine.any() or not self._count(slot, module):
            return
        rows = upload(np.flatnonzero(mine), keys.device)
        flat = weights[self.name(slot, module)]
        fresh = newborn(keys[rows], flat.dtype)
        flat.index_copy_(
            0, rows, torch.cat([values.reshape(len(rows), -1) for values in fresh.values()], dim=1)
        )

    def _owner_weights(self, slot: int, module: str, owners: Tensor, weights: Parameters) -> Parameters:
        """Tensors of a module, a row for each of these owners."""
        if not self._count(slot, module):
            return {}
        return self._views(slot, module, weights[self.name(slot, module)].index_select(0, owners))

    def _views(self, slot: int, module: str, flat: Tensor) -> Parameters:
        """The tensors [k, ...] of a module as views of its numbers [k, P]."""
        specs = self._modules[slot][module]
        pieces = torch.split(flat, [spec.count for spec in specs.values()], dim=1)
        return {
            name: piece.view(len(flat), *spec.shape)
            for (name, spec), piece in zip(specs.items(), pieces, strict=True)
        }

    def _count(self, slot: int, module: str) -> int:
        return sum(spec.count for spec in self._modules[slot][module].values())


def _layer_table(kind: Blueprint, channels: int) -> Tensor:
    """int64 [L, 8], rows of `LayerPlaces`, of a kind in a slot with that number of channels."""
    assert kind.layers is not None
    places, end = {}, 0
    for name, spec in kind.specs(channels).items():
        places[name] = end
        end += spec.count
    return torch.tensor([layer.places(places) for layer in kind.layers(channels)])
