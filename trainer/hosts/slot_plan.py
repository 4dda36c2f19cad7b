"""Plans: which hosts run which seeds in an epoch, as index tensors made once per topology.

`gather` runs the live seeds only; the other plan, that of `masked_plan`, gives a `MaskedRun` for each slot.
Topology comes as host copies (numpy) of the slot table's columns; what varies with the epoch, like alpha,
stays on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, Stage, Style
from esper_overwatch.trainer.compute.device import upload_together
from esper_overwatch.trainer.compute.native_seeds import ISOLATED as ALONE
from esper_overwatch.trainer.compute.native_seeds import SeedRows
from esper_overwatch.trainer.seeds.blend import RowBlock, SeedPlaces, SeedSegment
from esper_overwatch.trainer.seeds.table import SlotTable

from .owned_numbers import OwnedNumbers

Codes = NDArray[np.int64]
_IS_ISOLATED, _IS_BLENDED = (np.isin(list(Stage), stages) for stages in (ISOLATED, BLENDED))
"""bool by stage code."""


@dataclass(frozen=True)
class Topology:
    """Host copies of the slot table's columns that decide what runs, int64 [n, S], and what is measured."""

    stage: Codes
    blueprint: Codes
    style: Codes
    is_measured: NDArray[np.bool_]
    """bool [n, S], blended seeds whose contribution is to be measured."""
    pairs: NDArray[np.bool_]
    """bool [n, S, S], pairs of these (first slot < second) whose interaction is to be measured."""

    @classmethod
    def of(cls, stage: Any, blueprint: Any, style: Any) -> Topology:
        """Copy the columns from anything numpy reads, CPU tensors included."""
        columns = (torch.as_tensor(column, dtype=torch.int64) for column in (stage, blueprint, style))
        stages, blueprints, styles = (column.numpy().copy() for column in columns)
        blended = _IS_BLENDED[stages]
        return cls(
            stages, blueprints, styles, blended, np.zeros((*blended.shape, blended.shape[1]), dtype=np.bool_)
        )

    def rows(self, start: int, stop: int) -> Topology:
        return Topology(*(column[start:stop] for column in vars(self).values()))

    def fossils(self) -> Topology:
        """This topology without the seeds that have not fossilised."""
        kept = self.stage == Stage.FOSSILIZED
        return Topology(
            np.where(kept, self.stage, Stage.DORMANT),
            np.where(kept, self.blueprint, -1),
            self.style,
            self.is_measured & kept,
            self.pairs & kept[:, :, None] & kept[:, None, :],
        )

    @property
    def isolated(self) -> NDArray[np.bool_]:
        return _IS_ISOLATED[self.stage]

    @property
    def blended(self) -> NDArray[np.bool_]:
        return _IS_BLENDED[self.stage]


@dataclass(frozen=True)
class SlotRun:
    """A segment of one slot with the values it needs, for k rows."""

    segment: SeedSegment
    blueprints: tuple[tuple[int, int], ...]
    """Blueprints to run, and on how many rows each, in this order."""
    owners: Tensor
    """int64 [k], whose seed each row runs."""
    alpha: Tensor
    """float [k]; 0 where the seed is isolated or absent."""
    gated: Tensor | None
    """bool [k], rows of style GATE; None where there is none."""


@dataclass(frozen=True)
class NativeRun:
    """The seeds of one slot that our own kernel runs."""

    rows: SeedRows
    blueprints: tuple[tuple[int, int], ...]
    """Blueprints of these, in the order of the rows' kinds, and how many rows have each."""
    gated: bool | None
    """True where some are of style GATE, else None."""


@dataclass(frozen=True)
class MaskedRun:
    """All seeds of one slot, run on rows of which some need it not."""

    seeds: SeedPlaces
    blueprints: tuple[tuple[int, int], ...]
    """As in `SlotRun`."""
    alpha: Tensor
    """float [R]; 0 where the seed is isolated or absent."""
    gated: Tensor
    """bool [R], audible rows of style GATE."""
    numbers: OwnedNumbers | None
    """Of the weights of all slots; in the first slot's run alone."""


Run = SlotRun | NativeRun | MaskedRun
Runs = list[list[Run]]
"""Runs by slot."""


@dataclass(frozen=True)
class SlotColumns:
    """One slot of a group, ready to be planned: topology [n] on the host, alpha [n] on the device."""

    blueprint: Codes
    style: Codes
    isolated: NDArray[np.bool_]
    blended: NDArray[np.bool_]
    alpha: Tensor

    @classmethod
    def of(cls, topology: Topology, table: SlotTable, dtype: torch.dtype) -> list[SlotColumns]:
        """The columns of all slots."""
        isolated, blended, alpha = topology.isolated, topology.blended, table.alpha.to(dtype)
        return [
            cls(
                blueprint=topology.blueprint[:, slot],
                style=topology.style[:, slot],
                isolated=isolated[:, slot],
                blended=blended[:, slot],
                alpha=alpha[:, slot],
            )
            for slot in range(topology.stage.shape[1])
        ]

    @property
    def live(self) -> NDArray[np.bool_]:
        """bool [n], where a seed runs in training."""
        return self.isolated | self.blended

    @property
    def device(self) -> torch.device:
        return self.alpha.device


def gather(
    columns: SlotColumns, owners: Codes, run: NDArray[np.bool_], convolving: frozenset[int], *, apart: bool
) -> list[SlotRun]:
    """Plan a slot for R rows: live seeds only.

    Torch convolves one network by other kernels than several, and what a host computes must not depend on
    what the others hold. So seeds with convolutions either run one by one, each a segment, or a seed that is
    alone in its segment runs twice, the second time to no effect.

    Args:
        owners: [R], the env of each row; in training row i is env i.
        run: bool [R], rows whose seed is to run.
        convolving: codes of the blueprints that have convolutions.
        apart: whether seeds of these run one by one.
    """
    blueprint = columns.blueprint[owners]
    segments = []
    for b in np.unique(blueprint[run]).tolist():
        rows = np.flatnonzero(run & (blueprint == b))
        if apart and b in convolving:
            segments += [_segment(columns, owners, row, b, twice=False) for row in np.split(rows, len(rows))]
            continue
        twice = len(rows) == 1 and len(owners) > 1 and b in convolving
        segments.append(_segment(columns, owners, rows, b, twice=twice))
    return segments


def gather_natively(columns: SlotColumns, owners: Codes, run: NDArray[np.bool_]) -> NativeRun:
    """Plan the seeds of R rows, bool [R], for our own kernel; they may be of different blueprints."""
    rows = np.flatnonzero(run)
    owner = owners[rows]
    kinds, kind, counts = np.unique(columns.blueprint[owner], return_inverse=True, return_counts=True)
    isolated = columns.isolated[owner]
    blending = np.where(isolated, ALONE, columns.style[owner])
    table = torch.from_numpy(np.stack([rows, owner, kind, blending], axis=1))
    alpha = columns.alpha.index_select(0, torch.from_numpy(owner))
    return NativeRun(
        rows=SeedRows(table, alpha, is_blended=not isolated.all()),
        blueprints=tuple(zip(kinds.tolist(), counts.tolist(), strict=True)),
        gated=bool((blending == Style.GATE).any()) or None,
    )


def _segment(columns: SlotColumns, owners: Codes, rows: Codes, blueprint: int, *, twice: bool) -> SlotRun:
    isolated, style = columns.isolated[owners[rows]], columns.style[owners[rows]]
    kind = np.where(isolated, 3, np.choose(style, (0, 2, 1)))
    order = np.argsort(kind, kind="stable")
    rows, kind = rows[order], kind[order]
    linear, attached, end = (int(edge) for edge in np.searchsorted(kind, (2, 3, 4)))
    if twice:
        rows = rows.repeat(2)
    gated = np.resize(kind == 1, len(rows))
    flags = [gated.astype(np.int64)] if gated.any() else []
    index, owner, *flag = upload_together([rows, owners[rows], *flags], columns.device)
    edges = ((0, linear, False, False), (linear, attached, True, False), (attached, end, False, True))
    blocks = tuple(
        RowBlock(start, stop, index[start:stop], multiply, apart)
        for start, stop, multiply, apart in edges
        if stop > start
    )
    alpha = columns.alpha.index_select(0, owner)
    return SlotRun(
        segment=SeedSegment(rows=index, attached=attached, blocks=blocks, audible=alpha != 0.0),
        blueprints=((blueprint, len(rows)),),
        owners=owner,
        alpha=alpha,
        gated=flag[0] != 0 if flag else None,
    )
