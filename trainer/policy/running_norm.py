"""Running mean and standard deviation, of what was measured only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MAX_DEVIATIONS = 8.0
"""Standard deviations from the mean at which a feature is clipped."""

EPISODE_PARTS = 24
"""Into how many parts `EpochNorm` divides an episode."""


class RunningNorm(nn.Module):
    """Mean and variance per column over everything seen, merged batch by batch.

    Formula: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979). The statistics are float64 buffers, so they are part of `state_dict`.
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


class EpochNorm(nn.Module):
    """Normalises each part of an episode by itself: how an env differs from others at the same time.

    While hosts learn, measurements change far more from epoch to epoch than they differ between hosts: over
    all epochs such a difference is a small fraction of a standard deviation.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns
        self.norm = RunningNorm(EPISODE_PARTS * columns)

    def update(self, x: Tensor, time: Tensor) -> None:
        """Take in x [..., columns], measured at `time` [...], shares of the episode."""
        parts = torch.arange(EPISODE_PARTS, device=time.device)
        here = (_part(time).unsqueeze(-1) == parts).unsqueeze(-1)
        self.norm.update(x.unsqueeze(-2).where(here, torch.nan).flatten(-2))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(x - mean) / std of what was seen at such a time, within +-`MAX_DEVIATIONS`; NaN stays NaN."""
        part = _part(time)
        mean = self.norm.mean.to(x.dtype).view(EPISODE_PARTS, self.columns)[part]
        std = self.norm.std.to(x.dtype).view(EPISODE_PARTS, self.columns)[part]
        return ((x - mean) / std).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)


def _part(time: Tensor) -> Tensor:
    return (time * EPISODE_PARTS).round().long().clamp(0, EPISODE_PARTS - 1)
