"""Means of paired differences with their 95 % intervals and p-values.

The results of a policy are a matrix: a row for each training seed, a column for each held-out host; one row
where nothing was trained. Two policies met the same hosts, so their difference is taken host by host. Its
interval is the percentile bootstrap, with seeds and hosts resampled independently, and the hosts of each task
among themselves (Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1, 2007). The p-value is of
the same resamples: twice the share of means on the other side of 0, or at 0, so it is below .05 where the
interval leaves 0 out (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, 4.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

Matrix = NDArray[np.float64]
"""[seeds, hosts]"""

CONFIDENCE = 0.95
NUM_RESAMPLES = 9999
BATCH_VALUES = 2**24
"""Results, over all seeds and hosts, that are drawn at once: 128 MiB. Up to 1,677 of them it is one batch."""
METHOD = (
    f"percentile bootstrap, {NUM_RESAMPLES} resamples of seeds and of hosts within tasks, 95 %; p of the same"
)


@dataclass(frozen=True)
class Interval:
    """A mean, the limits of its interval and p, for a mean of 0; NaN where there is nothing to resample."""

    mean: float
    low: float
    high: float
    p: float

    def to_dict(self) -> dict[str, float | None]:
        """As JSON has it: None for NaN."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


def paired_interval(first: Matrix, second: Matrix, tasks: Sequence[str], seed: int = 0) -> Interval:
    """Mean of `first` less `second` over seeds and hosts.

    Args:
        first: [seeds, hosts]
        second: [seeds, hosts]; with one row, that row is compared with each of the other.
        tasks: of each host; each task weighs as its number of hosts.
        seed: of the resampling.

    Raises:
        ValueError: the hosts differ, or the numbers of seeds do and neither is 1.
    """
    return mean_interval(_difference(first, second), tasks, seed)


def mean_interval(values: Matrix, tasks: Sequence[str], seed: int = 0) -> Interval:
    """Mean of values [seeds, hosts] with its interval; see `paired_interval`."""
    num_seeds, num_hosts = values.shape
    if len(tasks) != num_hosts:
        raise ValueError(f"{num_hosts} hosts, and tasks of {len(tasks)}")
    strata = [np.flatnonzero(np.asarray(tasks) == task) for task in dict.fromkeys(tasks)]
    drawn: list[NDArray[Any]] = [np.arange(num_seeds), *strata]
    varied = [sample for sample in drawn if len(sample) > 1]
    mean = float(values.mean())
    if not varied:
        return Interval(mean, math.nan, math.nan, math.nan)
    places = [i for i, sample in enumerate(drawn) if len(sample) > 1]

    def resampled_mean(*samples: NDArray[Any], axis: int) -> NDArray[np.float64]:
        """[...] for samples [..., n]."""
        chosen = list(drawn)
        for place, sample in zip(places, samples, strict=True):
            chosen[place] = sample
        shape = samples[0].shape[:-1]
        rows, *columns = (np.broadcast_to(part, (*shape, part.shape[axis])) for part in chosen)
        drawn_values = values[rows[..., :, None], np.concatenate(columns, -1)[..., None, :]]
        return np.asarray(drawn_values.mean((-2, -1)))

    found = bootstrap(
        varied,
        resampled_mean,
        vectorized=True,
        axis=-1,
        paired=False,
        method="percentile",
        confidence_level=CONFIDENCE,
        n_resamples=NUM_RESAMPLES,
        batch=max(1, BATCH_VALUES // values.size),
        rng=np.random.default_rng(seed),
    )
    limits, means = found.confidence_interval, found.bootstrap_distribution
    beyond = min(int((means <= 0.0).sum()), int((means >= 0.0).sum()))
    p = min(1.0, 2 * (1 + beyond) / (1 + len(means)))
    return Interval(mean, float(limits.low), float(limits.high), p)


def _difference(first: Matrix, second: Matrix) -> Matrix:
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"results of {first.shape[1]} and of {second.shape[1]} hosts are not paired")
    if first.shape[0] != second.shape[0] and 1 not in (first.shape[0], second.shape[0]):
        raise ValueError(f"results of {first.shape[0]} and of {second.shape[0]} seeds are not paired")
    return np.asarray(first - second, dtype=np.float64)
