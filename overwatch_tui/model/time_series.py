"""The course of a signal: minimum, mean and maximum per bucket, at four resolutions, in bounded memory.

Buckets are anchored to absolute time (`index = floor(ts / dt)`), and so are those of a chart that asks for
them: a chart moves once per bucket, and in between only its last column changes.
"""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite, nan
from typing import NamedTuple, Self

SECOND = 1_000_000
"""Microseconds: the unit of all times here."""

RESOLUTIONS: tuple[tuple[int, int], ...] = (
    (1 * SECOND, 900),
    (10 * SECOND, 1080),
    (60 * SECOND, 720),
    (300 * SECOND, 2016),
)
"""(bucket, how many of time): 1 s for 15 min, 10 s for 3 h, 1 min for 12 h, 5 min for a week."""
SHORT_RESOLUTIONS: tuple[tuple[int, int], ...] = ((10 * SECOND, 360),)
"""Resolution of many short-lived signals, such as those of seeds: 10 s for an hour."""

SLACK = 64
"""Buckets above the capacity, so that the oldest are dropped several at a time."""
MAX_VALUE = 1e30
"""Values beyond are cut to it, so that single precision holds them."""


class Bucket(NamedTuple):
    """Least, mean and greatest value within a span of time."""

    low: float
    mean: float
    high: float


class BucketRing:
    """Buckets of `dt` microseconds, oldest first, of a time of `capacity` of them.

    Until one has a second value, `low` and `high` are the column `total` itself: most rings stay so.
    """

    __slots__ = ("capacity", "count", "dt", "high", "index", "low", "total")

    def __init__(self, dt: int, capacity: int) -> None:
        self.dt = dt
        self.capacity = capacity
        self.index = array("I")
        self.low = self.high = self.total = array("d")
        self.count = array("B")

    def copy(self, end: int | None = None) -> BucketRing:
        """The buckets before an index; None = all."""
        twin = BucketRing(self.dt, self.capacity)
        twin.index, twin.count = self.index[:end], self.count[:end]
        twin.low = twin.high = twin.total = self.total[:end]
        if self.low is not self.total:
            twin.low, twin.high = self.low[:end], self.high[:end]
        return twin

    def add(self, ts: int, value: float) -> None:
        index = ts // self.dt
        if not self.index or index > self.index[-1]:
            self._insert(len(self.index), index, value)
            return
        at = -1
        if index < self.index[-1]:
            at = bisect_left(self.index, index)
            if self.index[at] != index:
                if index > self.index[-1] - self.capacity:
                    self._insert(at, index, value)
                return
        self._split()
        self.low[at], self.high[at] = min(self.low[at], value), max(self.high[at], value)
        self.total[at] += value
        self.count[at] += 1

    def _insert(self, at: int, index: int, value: float) -> None:
        """Begin a bucket; a new last one makes the oldest go."""
        is_split = self.low is not self.total
        if self.index and index - self.index[0] >= self.capacity + SLACK:
            old = bisect_left(self.index, index - self.capacity + 1)
            for column in (self.index, self.total, self.count, *((self.low, self.high) if is_split else ())):
                del column[:old]
        try:
            self.index.insert(at, index)
        except OverflowError:  # a step may be any number
            self.index = array("q", self.index)
            self.index.insert(at, index)
        self.total.insert(at, value)
        self.count.insert(at, 1)
        if is_split:
            self.low.insert(at, value)
            self.high.insert(at, value)

    def _split(self) -> None:
        """Have a least and a greatest value beside the sum: a bucket gets a second value."""
        if self.low is self.total:
            self.low, self.high = array("f", self.total), array("f", self.total)
            self.count = array("I", self.count)

    def cut(self, until: int) -> BucketRing:
        """The buckets that end at a time or before it."""
        return self.copy(bisect_left(self.index, until // self.dt))

    def append_bucket(self, index: int, other: BucketRing, at: int) -> None:
        """Take the values of another ring's bucket into one that is the last here, or follows the last."""
        self._split()
        if not self.index or index > self.index[-1]:
            self._insert(len(self.index), index, other.low[at])
            self.total[-1], self.count[-1] = 0.0, 0
        self.low[-1], self.high[-1] = min(self.low[-1], other.low[at]), max(self.high[-1], other.high[at])
        self.total[-1] += other.total[at]
        self.count[-1] += other.count[at]


class History:
    """One signal over time, in resolutions of (bucket in microseconds, capacity), the finest first."""

    __slots__ = ("_rings", "first_ts", "last", "last_seq", "last_ts")

    def __init__(self, resolutions: tuple[tuple[int, int], ...] = RESOLUTIONS) -> None:
        self._rings = [BucketRing(dt, capacity) for dt, capacity in resolutions]
        self.last: float = nan
        self.last_seq: int = 0
        self.last_ts: int = 0
        self.first_ts: int = 0

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin._rings = [ring.copy() for ring in self._rings]
        return twin

    def cut(self, until: int) -> History:
        """History of the values before a time, at which a bucket of all but the coarsest resolution ends.

        Its last value is the mean of the last bucket.
        """
        twin = History(())
        twin._rings = [ring.cut(until) for ring in self._rings]
        for fine, coarse in pairwise(twin._rings):
            begun = until // coarse.dt
            for at in range(bisect_left(fine.index, begun * coarse.dt // fine.dt), len(fine.index)):
                coarse.append_bucket(begun, fine, at)
        ring = next((ring for ring in twin._rings if ring.index), None)
        if ring is not None:
            twin.last, twin.last_ts = ring.total[-1] / ring.count[-1], ring.index[-1] * ring.dt
            twin.first_ts = min(self.first_ts, twin.last_ts)
        return twin

    def add(self, ts: int, value: float | None, seq: int = 0) -> None:
        """Take a value; None and non-finite ones leave a hole.

        Args:
            ts: its time, microseconds: where it is drawn.
            seq: number of its event: the last value is that of the largest, since a clock may step back.
        """
        if value is None or not isfinite(value):
            return
        value = max(-MAX_VALUE, min(MAX_VALUE, value))
        if (seq, ts) >= (self.last_seq, self.last_ts):
            self.last, self.last_seq, self.last_ts = value, seq, ts
        self.first_ts = min(self.first_ts, ts) if self.first_ts else ts
        for ring in self._rings:
            ring.add(ts, value)

    def points(self, since: int) -> list[tuple[int, Bucket]]:
        """(begin in microseconds, bucket) of what was measured since a time, oldest first.

        Each moment at the finest resolution that still has it; coarse buckets that overlap finer ones are
        left out.
        """
        found: list[tuple[int, Bucket]] = []
        end: int | None = None
        for ring in self._rings:
            lows, highs = array("f", ring.low), array("f", ring.high)
            spans = [
                (ring.index[i] * ring.dt, Bucket(lows[i], ring.total[i] / ring.count[i], highs[i]))
                for i in range(len(ring.index))
            ]
            fits = [(at, one) for at, one in spans if at + ring.dt > since]
            found = [(at, one) for at, one in fits if end is None or at + ring.dt <= end] + found
            if ring.index:
                end = ring.index[0] * ring.dt
        return found

    def buckets(self, now: int, window: int, count: int) -> list[Bucket | None]:
        """`count` buckets that end with the one `now` lies in; None where nothing was measured.

        A hole between two measurements holds the earlier one; after the newest nothing is drawn. Where the
        fine buckets do not reach back far enough, coarser ones continue them.

        Args:
            now: wall time, microseconds.
            window: span of all buckets together, microseconds.
        """
        dt = max(window // count, 1)
        first = now // dt - count + 1
        lows, highs = array("f", [nan]) * count, array("f", [nan]) * count
        for ring, begin, stop in self._parts(first, dt):
            for i in range(begin, stop):
                at = max(ring.index[i] * ring.dt // dt - first, 0)
                if at >= count:
                    break
                lows[at] = ring.low[i] if lows[at] != lows[at] else min(lows[at], ring.low[i])
                highs[at] = ring.high[i] if highs[at] != highs[at] else max(highs[at], ring.high[i])
        columns = zip(lows, self.means(now, window, count), highs, strict=True)
        return [
            None if mean is None else Bucket(mean, mean, mean) if low != low else Bucket(low, mean, high)
            for low, mean, high in columns
        ]

    def means(self, now: int, window: int, count: int) -> list[float | None]:
        """The means of `buckets`, in a third of its time."""
        dt = max(window // count, 1)
        first = now // dt - count + 1
        totals = [0.0] * count
        counts = [0] * count
        for ring, begin, stop in self._parts(first, dt):
            size = ring.dt
            columns = [index * size // dt - first for index in ring.index[begin:stop]]
            if columns and columns[0] < 0:
                columns[0] = 0  # a coarse bucket that the first column lies in
            sums = zip(columns, ring.total[begin:stop], ring.count[begin:stop], strict=True)
            for at, total, values in sums:
                if at >= count:
                    break
                totals[at] += total
                counts[at] += values
        return _hold_means(totals, counts)

    def _parts(self, first: int, dt: int) -> Iterator[tuple[BucketRing, int, int]]:
        """The rings that columns of `dt` are made of, with the begin and end of what each gives.

        From the column `first` on; of a coarser ring what lies before the finer ones.
        """
        finest = next((i for i in reversed(range(len(self._rings))) if self._rings[i].dt <= dt), 0)
        end: int | None = None
        for ring in self._rings[finest:]:
            stop = len(ring.index) if end is None else bisect_left(ring.index, end // ring.dt)
            yield ring, bisect_left(ring.index, first * dt // ring.dt), stop
            if ring.index:
                end = ring.index[0] * ring.dt
                if end <= first * dt:
                    return


def _hold_means(totals: list[float], counts: list[int]) -> list[float | None]:
    """Quotients; holes between measurements hold the one before."""
    mean: float | None = None
    means = [mean := total / values if values else mean for total, values in zip(totals, counts, strict=True)]
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    means[end:] = [None] * (len(counts) - end)
    return means
