"""The course of a signal by the run's own step: of a published run what it logged, of a training its epochs.

All of a run is kept, however long, in buckets that double where there are too many.
"""

from __future__ import annotations

from bisect import bisect_right

from .time_series import BucketRing, History

STEP = 1_000
"""The unit of the axis: a step is a thousand of it, so that few steps fill a wide chart."""
MAX_BUCKETS = 2_048


class StepHistory(History):
    """As a `History`, with a step times `STEP` in place of each time."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(((STEP, 2**62 // STEP),))

    def add(self, ts: int, value: float | None, seq: int = 0) -> None:
        super().add(ts, value, seq)
        (ring,) = self._rings
        if len(ring.index) > MAX_BUCKETS:
            twin = BucketRing(2 * ring.dt, ring.capacity // 2)
            for at, index in enumerate(ring.index):  # pairs of buckets are made one
                twin.append_bucket(index // 2, ring, at)
            self._rings = [twin]

    def cut_behind(self, ts: int) -> None:
        """Forget what came after a step: it is played again."""
        (ring,) = self._rings
        self._rings = [ring.copy(bisect_right(ring.index, ts // ring.dt))]
