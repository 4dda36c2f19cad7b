"""Gradient drift: how far a gradient's norm and health have left their own running average.

    drift = |x - ema| / max(ema, 1e-6)

against the average of the samples before x. The average is exponential and bias-corrected as Adam's moments
are (Kingma and Ba 2015, section 3): m <- beta m + (1 - beta) x, ema = m / (1 - beta^t); once it is trusted, x
is cut to within a factor of it. Until a source has given `warmup` samples it has no drift. A sample that is
absent (NaN) or infinite leaves the average alone; an infinite one has infinite drift.

Some sources wander by nature: hosts that grow change their gradients. So what counts as too much is at least
`drift.unusual_factor` times the usual drift of all sources of that kind: the average over time of their
median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import Drift
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold
from esper_overwatch.trainer.config.anomaly_options import DriftConfig

from .columns import nullable

EPSILON = 1e-6
MAX_STEP = 2.0
"""A sample counts in a trusted average as at most this multiple of it, and as at least its inverse: else the
average would hold an outburst for long, and what is healthy again would be far from it."""
FAST_MOMENTUM = 0.9
"""Averages up to this momentum forget within some epochs, and have to follow what changes fast."""
MAX_USUAL_RATIO = 2.0
"""Largest multiple of the usual drift that a sample counts as in it."""
SIGNALS = ("norm_drift", "health_drift")
DEFAULTS = DriftConfig()
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Smoothing:
    """Smoothing of an average, and the number of samples from which it is trusted."""

    momentum: float
    warmup: int


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
        self.fell = np.zeros(shape, dtype=np.bool_)
        """Whether the last sample was below its average."""

    @property
    def value(self) -> Floats:
        """The averages; NaN where there was no sample."""
        return np.divide(
            self._moment, self._weight, out=np.full_like(self._moment, np.nan), where=self._count > 0
        )

    @property
    def trusted(self) -> Floats:
        """The averages that have their warm-up behind them; NaN elsewhere."""
        return np.where(self._count >= self._warmup, self.value, np.nan)

    def drift_and_update(self, sample: Floats) -> Floats:
        """Drift of each sample against its average so far, which then takes the sample in."""
        average = self.trusted
        self.fell = sample < average
        drift: Floats = np.abs(sample - average) / np.maximum(average, EPSILON)
        taken = np.isfinite(sample)
        beta = np.where(taken, self._momentum, 1.0)
        is_known = (average >= EPSILON) & (self._momentum > FAST_MOMENTUM)  # a NaN is not known
        bounded = np.where(is_known, np.clip(sample, average / MAX_STEP, MAX_STEP * average), sample)
        self._moment = beta * self._moment + (1.0 - beta) * np.where(taken, bounded, 0.0)
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
        pools: by scope of the checks, the names of its sources as in the `drift` event, and their smoothing.
        config: what drift is usual, and how far beyond it is too much.
        thresholds: the table of limits, below which no drift is too much.
    """

    def __init__(
        self,
        pools: Mapping[str, tuple[Sequence[str], Smoothing]],
        config: DriftConfig = DEFAULTS,
        thresholds: Mapping[str, Threshold] = THRESHOLDS,
    ) -> None:
        self._unusual_factor, self._thresholds = config.unusual_factor, thresholds
        self.sources = [name for names, _ in pools.values() for name in names]
        smoothing = [each for names, each in pools.values() for _ in names]
        self._average = _average(smoothing)
        self._usual = _average([Smoothing(config.usual_momentum, config.usual_warmup)] * len(pools))
        self._usual_before = self._usual.trusted
        self._rows: dict[str, slice] = {}
        for scope, (names, _) in pools.items():
            begin = max((rows.stop for rows in self._rows.values()), default=0)
            self._rows[scope] = slice(begin, begin + len(names))
        self._drift = np.full((2, len(self.sources)), np.nan)
        """[2, K] of the last update, norm and health; NaN where there is none."""

    def update(self, norm: Floats, health: Floats) -> Drift | None:
        """Take in one sample per source.

        Args:
            norm: [K] gradient norms; NaN where not measured, or where the gradient is NaN.
            health: [K] share of usable gradients; NaN where not measured.

        Returns:
            The event, with the sources that were measured; None where none was.
        """
        self._drift = self._average.drift_and_update(np.stack([norm, health]))
        self._usual_before = self._usual.trusted
        usual = np.stack([_median(self._drift[:, rows]) for rows in self._rows.values()], axis=1)
        # What is unusual must not make itself usual: where there is one source, its fault is the median.
        most = MAX_USUAL_RATIO * self._usual_before
        self._usual.drift_and_update(np.where(np.isnan(most), usual, np.minimum(usual, most)))
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
            norm_drift=column(self._drift[0]),
            health=column(health),
            health_ema=column(health_ema),
            health_drift=column(self._drift[1]),
            limits={
                f"{scope}.{signal}": float(f"{limit:.4g}")
                for i, signal in enumerate(SIGNALS)
                for pool, scope in enumerate(self._rows)
                if (limit := self._limit(i, pool)) == limit
            },
        )

    def _limit(self, signal: int, pool: int) -> float:
        """The drift from which on it is too much; NaN while what is usual is not known."""
        least = self._thresholds[SIGNALS[signal]].warning
        return float(np.maximum(least, self._unusual_factor * self._usual_before[signal, pool]))

    def checks(self, scope: str) -> tuple[dict[str, Floats], dict[str, tuple[float, float | None]]]:
        """Readings of the last update and their (warning, critical) limits, for the detector.

        A health that has risen above its average has no drift here: that is what one hopes for.

        Args:
            scope: which sources; the signals are `<scope>.norm_drift` and `<scope>.health_drift`.
        """
        pool = list(self._rows).index(scope)
        readings: dict[str, Floats] = {}
        limits: dict[str, tuple[float, float | None]] = {}
        rows = self._rows[scope]
        for i, signal in enumerate(SIGNALS):
            limit = self._limit(i, pool)
            if limit == limit:
                drift = self._drift[i, rows]
                if signal == "health_drift":
                    drift = np.where(np.isnan(drift) | self._average.fell[i, rows], drift, 0.0)
                readings[f"{scope}.{signal}"] = drift
                limits[f"{scope}.{signal}"] = (limit, None)
        return readings, limits

    def restart(self, scope: str, mask: NDArray[np.bool_]) -> None:
        """Forget the sources of `scope` where `mask` is true: another seed lives there now."""
        rows = np.zeros(len(self.sources), dtype=np.bool_)
        rows[self._rows[scope]] = mask.reshape(-1)
        self._average.restart(rows)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average.state_dict(), "usual": self._usual.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state["average"])
        self._usual.load_state_dict(state["usual"])


def _average(smoothing: Sequence[Smoothing]) -> Average:
    return Average(np.array([s.momentum for s in smoothing]), np.array([s.warmup for s in smoothing]))


def _median(drift: Floats) -> Floats:
    """[2] the upper median over the sources that have a finite drift; NaN where none has."""
    return np.array(
        [
            np.sort(known)[known.size // 2] if (known := row[np.isfinite(row)]).size else np.nan
            for row in drift
        ]
    )
