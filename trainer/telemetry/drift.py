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
    """Bias-corrected exponential averages of K sources, of two signals each: arrays are [2, K]."""

    def __init__(self, momentum: Floats, warmup: NDArray[np.int64]) -> None:
        self._momentum = momentum
        self._warmup = warmup
        shape = (2, *momentum.shape)
        self._moment = np.zeros(shape)
        self._weight = np.zeros(shape)
        """1 - beta^t, summed as the moment is, so that a constant stream averages to itself exactly."""
        self._count = np.zeros(shape, dtype=np.int64)

    @property
    def value(self) -> Floats:
        """The averages; NaN where there was no sample."""
        return np.divide(
            self._moment, self._weight, out=np.full_like(self._moment, np.nan), where=self._count > 0
        )

    def drift_and_update(self, sample: Floats) -> Floats:
        """Drift of each sample against its average so far, which then takes the sample in."""
        average = self.value
        drift: Floats = np.abs(sample - average) / np.maximum(average, EPSILON)
        drift[self._count < self._warmup] = np.nan
        taken = np.isfinite(sample)
        beta = np.where(taken, self._momentum, 1.0)
        self._moment = beta * self._moment + (1.0 - beta) * np.where(taken, sample, 0.0)
        self._weight = beta * self._weight + (1.0 - beta)
        self._count += taken
        return drift

    def restart(self, mask: NDArray[np.bool_]) -> None:
        """Forget the sources where `mask` [K] is true."""
        for array in (self._moment, self._weight, self._count):
            array[:, mask] = 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        arrays = {"moment": self._moment, "weight": self._weight, "count": self._count}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

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
        self._average = Average(momentum, warmup)
        self.norm_drift: Floats = np.full(len(self.sources), np.nan)
        """[K] of the last update; NaN where it has none."""
        self.health_drift: Floats = self.norm_drift

    def update(self, norm: Floats, health: Floats) -> Drift | None:
        """Take in one sample per source.

        Args:
            norm: [K] gradient norms; NaN where not measured, or where the gradient is NaN.
            health: [K] share of usable gradients; NaN where not measured.

        Returns:
            The event, with the sources that were measured; None where none was.
        """
        self.norm_drift, self.health_drift = self._average.drift_and_update(np.stack([norm, health]))
        rows = np.flatnonzero(~(np.isnan(norm) & np.isnan(health)))
        if rows.size == 0:
            return None

        def column(values: Floats) -> list[Any]:
            values = values[rows]
            return nullable(values, np.isnan(values))

        norm_ema, health_ema = self._average.value
        return Drift(
            source=[self.sources[i] for i in rows],
            norm=norm[rows].tolist(),
            norm_ema=column(norm_ema),
            norm_drift=column(self.norm_drift),
            health=column(health),
            health_ema=column(health_ema),
            health_drift=column(self.health_drift),
        )

    def restart(self, mask: NDArray[np.bool_]) -> None:
        """Forget the sources where `mask` [K] is true: another seed lives there now."""
        self._average.restart(mask)

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state)
