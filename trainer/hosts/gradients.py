"""Gradient statistics of stacked parameters: everything per row (host or seed), nothing per env.

Sums of squares are taken in float64, where they cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from protocol.thresholds import THRESHOLDS

VANISHED = 1e-7
"""A tensor whose gradient norm is below this has none to speak of."""
EXPLODED = THRESHOLDS["gradient_exploding"].critical


def row_norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of each row of each tensor: float64 [T, n] from T tensors [n, ...]."""
    return torch.stack(
        [torch.linalg.vector_norm(t.reshape(t.shape[0], -1), dim=1, dtype=torch.float64) for t in tensors]
    )


def norm_and_health(norms: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """L2 norm over the tensors of a module, and the share of them with a usable gradient.

    A gradient is usable where its norm is finite, has not vanished and has not exploded.

    Args:
        norms: [T, n] as `row_norms` gives them.
        present: bool [T, n], which tensors a row has.

    Returns:
        Two float32 [n]; NaN where a row has none.
    """
    count = present.sum(0)
    usable = present & (norms >= VANISHED) & (norms <= EXPLODED)
    total = torch.linalg.vector_norm(norms.masked_fill(~present, 0.0), dim=0)
    nothing = count == 0
    return (
        total.masked_fill(nothing, float("nan")).float(),
        (usable.sum(0) / count.clamp_min(1)).masked_fill(nothing, float("nan")).float(),
    )


@dataclass
class LayerStatistics:
    """Of one epoch's last step: L layers by N envs, float32; NaN where an env has no such layer."""

    names: list[str]
    grad_norm: Tensor
    grad_rms: Tensor
    grad_max: Tensor
    zero_fraction: Tensor
    nonfinite: Tensor
    """Count of gradients that are NaN or infinite."""
    weight_norm: Tensor

    @classmethod
    def joined(cls, parts: Sequence[LayerStatistics]) -> LayerStatistics:
        """The statistics of several groups, side by side; a layer that a group lacks is NaN there."""
        names = list(dict.fromkeys(name for part in parts for name in part.names))
        columns = [f.name for f in fields(cls) if f.name != "names"]
        merged = {column: torch.cat([p._on(names, column) for p in parts], dim=1) for column in columns}
        return cls(names=names, **merged)

    def _on(self, names: list[str], column: str) -> Tensor:
        values: Tensor = getattr(self, column)
        out = values.new_full((len(names), values.shape[1]), float("nan"))
        out[[names.index(name) for name in self.names]] = values
        return out


def layer_statistics(
    names: list[str], gradients: Sequence[Tensor], weights: Sequence[Tensor], present: Tensor
) -> LayerStatistics:
    """Statistics of each layer of each env.

    Args:
        names: of the L layers.
        gradients: L tensors [n, ...].
        weights: L tensors [n, ...].
        present: bool [L, n], where an env has the layer and was asked for.
    """
    flat = [g.reshape(g.shape[0], -1) for g in gradients]
    counts = torch.tensor([[g.shape[1]] for g in flat], dtype=torch.float64, device=present.device)
    norms = row_norms(gradients)

    def column(values: Tensor) -> Tensor:
        return torch.where(present, values, float("nan")).float()

    return LayerStatistics(
        names=names,
        grad_norm=column(norms),
        grad_rms=column(norms / counts.sqrt()),
        grad_max=column(torch.stack([g.abs().amax(1) for g in flat])),
        zero_fraction=column(torch.stack([(g == 0).float().mean(1) for g in flat])),
        nonfinite=column(torch.stack([(~g.isfinite()).float().sum(1) for g in flat])),
        weight_norm=column(row_norms([w.detach() for w in weights])),
    )
