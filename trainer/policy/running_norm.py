"""Running mean and standard deviation, of what was measured only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MAX_DEVIATIONS = 8.0
"""Standard deviations from the mean at which a feature is clipped."""


class RunningNorm(nn.Module):
    """Mean and variance per column over everything seen, merged batch by batch.

    Formula: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979). The statistics are float64 buffers, so they are part of `state_dict`.

    Args:
        columns: how many.
    """

    mean: Tensor
    m2: Tensor
    count: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        for name in ("mean", "m2", "count"):
            self.register_buffer(name, torch.zeros(columns, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """float64 [columns]; 1 where nothing, or always the same, was seen."""
        variance = self.m2 / self.count.clamp(min=1)
        return variance.sqrt().where(variance > 1e-12, 1.0)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in x [..., columns]; entries that are not finite are left out."""
        x = x.reshape(-1, x.shape[-1]).double()
        known = x.isfinite()
        n = known.sum(0).double()
        total = n.clamp(min=1)
        mean = x.where(known, 0.0).sum(0) / total
        m2 = (x - mean).where(known, 0.0).square().sum(0)
        delta, count = mean - self.mean, self.count + n
        share = n / count.clamp(min=1)
        self.mean += delta * share
        self.m2 += m2 + delta.square() * self.count * share
        self.count.copy_(count)

    def forward(self, x: Tensor, limit: float = MAX_DEVIATIONS) -> Tensor:
        """(x - mean) / std within +-limit, in x's dtype; NaN stays NaN."""
        return ((x - self.mean.to(x.dtype)) / self.std.to(x.dtype)).clamp(-limit, limit)
