"""Judges from its free space whether the disk of a run is filling up."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from esper_overwatch.protocol.messages.events import SystemSample

from .alarm import Alarm, Finding

WARNING_BYTES = 200 * 2**20
CRITICAL_BYTES = 50 * 2**20
WARNING_SECONDS = 3600.0
"""A disk that will be full within this time at its present rate is told of."""
RATE_SECONDS, MIN_RATE_SECONDS = 300.0, 120.0
"""Of the newest samples, over which the rate is measured; and how long these must span."""
CLEAR_RATIO = 1.25
"""Times the limit, from which on it is over."""


class DiskWatch:
    """Raises `disk` by the samples of the machine.

    Args:
        emit: takes the anomaly.
        publish: takes each sample before it is judged.
        reserve: bytes that the next checkpoint needs, beyond what is left as a margin.
    """

    def __init__(
        self,
        emit: Callable[[object], None],
        publish: Callable[[SystemSample], None],
        reserve: Callable[[], int] = lambda: 0,
    ) -> None:
        self._publish, self._reserve = publish, reserve
        self._alarm = Alarm(emit, "system", "disk")
        self._samples: deque[tuple[float, int]] = deque()
        self._is_low = self._is_critical = False

    def take(self, sample: SystemSample) -> None:
        """Publish and judge a sample of now."""
        self._publish(sample)
        self._alarm.follow(self.judge(time.monotonic(), sample.disk_free))

    def judge(self, now: float, free: int) -> Finding | None:
        """What there is to say of the disk.

        Args:
            now: monotonic, in seconds.
            free: bytes.
        """
        self._samples.append((now, free))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        rate, floor = self._bytes_per_second(), WARNING_BYTES + self._reserve()
        limit = max(float(floor), WARNING_SECONDS * rate)
        self._is_critical = free < CRITICAL_BYTES * (CLEAR_RATIO if self._is_critical else 1.0)
        self._is_low = self._is_critical or free < limit * (CLEAR_RATIO if self._is_low else 1.0)
        if not self._is_low:
            return None
        soon = f", full in {free / rate / 60:.0f} min at this rate" if free < WARNING_SECONDS * rate else ""
        return Finding(
            severity="critical" if self._is_critical else "warning",
            value=float(free),
            threshold=float(CRITICAL_BYTES) if self._is_critical else limit,
            hint=f"{free / 2**20:,.0f} MiB free on the disk of the run{soon}: free space",
        )

    def _bytes_per_second(self) -> float:
        """How fast the disk fills: the slower half of the newest minutes, so that one large file is none."""
        begin, end = self._samples[0], self._samples[-1]
        if end[0] - begin[0] < MIN_RATE_SECONDS:
            return 0.0
        middle = self._samples[len(self._samples) // 2]
        halves = ((begin, middle), (middle, end))
        rates = [(a[1] - b[1]) / (b[0] - a[0]) for a, b in halves if b[0] > a[0]]
        return max(0.0, min(rates, default=0.0))
