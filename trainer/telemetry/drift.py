"""Gradient drift: how far a gradient's norm and health have left their own running average.

    drift = |x - ema| / max(ema, 1e-6)

against the average of the samples before x. The average is exponential and bias-corrected as Adam's moments
are (Kingma and Ba 2015, section 3): m <- beta m + (1 - beta) x, ema = m / (1 - beta^t). Until a source has
given `warmup` samples it has no drift. A sample that is absent (NaN) or infinite leaves the average alone;
an infinite one has infinite drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.events import Drift

from .columns import nullable

EPSILON = 1e-6
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Smoothing:
    """How slowly an average follows, and from how many samples on it is trusted."""

    momentum: float
    warmup: int


HOST = Smoothing(momentum=0.99, warmup=20)
"""One sample per epoch and env; goes on over episodes."""
SEED = Smoothing(momentum=0.9, warmup=5)
"""A seed lives for some epochs of one episode only: a slower average would never be trusted."""
POLICY = Smoothing(momentum=0.95, warmup=20)
"""One sample per PPO update."""


class Average:
    """Bias-corrected exponential averages of K independent sources."""

    def __init__(self, momentum: Floats, warmup: NDArray[np.int64]) -> None:
        self._momentum = momentum
        self._warmup = warmup
        self._moment = np.zeros_like(momentum)
        self._weight = np.zeros_like(momentum)
        """1 - beta^t, summed as the moment is, so that a constant stream averages to itself exactly."""
        self._count = np.zeros_like(warmup)

    @property
    def value(self) -> Floats:
        """[K] the averages; NaN where there was no sample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self._count > 0, self._moment / self._weight, np.nan)

    def drift_and_update(self, sample: Floats) -> Floats:
        """[K] drift of each sample against its average so far, which then takes the sample in."""
        average = self.value
        with np.errstate(invalid="ignore"):
            drift = np.abs(sample - average) / np.maximum(average, EPSILON)
        drift[self._count < self._warmup] = np.nan
        taken = np.isfinite(sample)
        beta = self._momentum[taken]
        self._moment[taken] = beta * self._moment[taken] + (1.0 - beta) * sample[taken]
        self._weight[taken] = beta * self._weight[taken] + (1.0 - beta)
        self._count[taken] += 1
        return drift

    def restart(self, mask: NDArray[np.bool_]) -> None:
        """Forget the sources where `mask` is true."""
        for array in (self._moment, self._weight, self._count):
            array[mask] = 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {
            "moment": torch.from_numpy(self._moment.copy()),
            "weight": torch.from_numpy(self._weight.copy()),
            "count": torch.from_numpy(self._count.copy()),
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._moment[:] = state["moment"].numpy()
        self._weight[:] = state["weight"].numpy()
        self._count[:] = state["count"].numpy()


class DriftMonitor:
    """Drift of norm and health over columns of sources.

    Args:
        sources: names, as in the `drift` event.
        smoothing: one per source.
    """

    def __init__(self, sources: Sequence[str], smoothing: Sequence[Smoothing]) -> None:
        self.sources = list(sources)
        momentum = np.array([s.momentum for s in smoothing], dtype=np.float64)
        warmup = np.array([s.warmup for s in smoothing], dtype=np.int64)
        assert momentum.shape == (len(self.sources),)
        self._norm = Average(momentum, warmup)
        self._health = Average(momentum, warmup)
        absent = np.full(len(self.sources), np.nan)
        self.norm_drift: Floats = absent
        """[K] of the last update; NaN where it has none."""
        self.health_drift: Floats = absent.copy()

    def update(self, norm: Floats, health: Floats) -> Drift | None:
        """Take in one sample per source.

        Args:
            norm: [K] gradient norms; NaN where not measured, or where the gradient is NaN.
            health: [K] share of usable gradients; NaN where not measured.

        Returns:
            The event, with the sources that were measured; None where none was.
        """
        self.norm_drift = self._norm.drift_and_update(norm)
        self.health_drift = self._health.drift_and_update(health)
        rows = np.flatnonzero(~(np.isnan(norm) & np.isnan(health)))
        if rows.size == 0:
            return None

        def column(values: Floats) -> list[Any]:
            values = values[rows]
            return nullable(values, np.isnan(values))

        return Drift(
            source=[self.sources[i] for i in rows],
            norm=norm[rows].tolist(),
            norm_ema=column(self._norm.value),
            norm_drift=column(self.norm_drift),
            health=column(health),
            health_ema=column(self._health.value),
            health_drift=column(self.health_drift),
        )

    def restart(self, mask: NDArray[np.bool_]) -> None:
        """Forget the sources where `mask` [K] is true: another seed lives there now."""
        self._norm.restart(mask)
        self._health.restart(mask)

    def state_dict(self) -> dict[str, Any]:
        return {"norm": self._norm.state_dict(), "health": self._health.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norm.load_state_dict(state["norm"])
        self._health.load_state_dict(state["health"])
