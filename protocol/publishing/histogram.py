"""A sample of an array, as counts and moments."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite, sqrt

from esper_overwatch.protocol.messages.events import Histogram

from .values import ArraySample

MAX_BINS = 64


def make_histogram(step: int, name: str, sample: ArraySample) -> Histogram:
    """Count the finite values in bins of equal width.

    Args:
        step: when it was logged.
        name: of the value.
        sample: its values; an array's `tolist` is called here, which waits for its device.
    """
    values = sample.values if isinstance(sample.values, list) else sample.values.tolist()
    finite = [float(x) for x in values if isfinite(x)]
    made = Histogram(
        step=step,
        name=name,
        counts=[],
        size=sample.size,
        sampled=len(values),
        nonfinite=len(values) - len(finite),
    )
    if finite:
        count = len(finite)
        made.min, made.max = min(finite), max(finite)
        mean = made.mean = fsum([x / count for x in finite])
        made.std = sqrt(fsum([(x - mean) * ((x - mean) / count) for x in finite]))
        made.counts = _count(finite, made.min, made.max)
    return made


def _count(values: Sequence[float], low: float, high: float) -> list[int]:
    """Values per bin from `low` to `high`; one bin where these are equal."""
    half = high / 2 - low / 2  # the whole span may be beyond the largest float
    if half == 0.0:
        return [len(values)]
    counts = [0] * MAX_BINS
    for x in values:
        counts[min(MAX_BINS - 1, int((x / 2 - low / 2) / half * MAX_BINS))] += 1
    return counts
