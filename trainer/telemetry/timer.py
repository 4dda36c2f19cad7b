"""Where the wall time of an epoch goes: named phases that sum to the whole.

Phases nest: an inner one's time is not counted again in the outer one. What lies outside all of them is
`other`. A phase is also an annotation in the trace of a running profiler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import record_function

from .gpu_clock import GpuClock

OTHER = "other"


class PhaseTimer:
    """Wall seconds per phase since the last `lap`.

    Args:
        gpu: is told of the phases too, where there is one.

    Attributes:
        gpu_phases: seconds of a GPU per phase of an earlier epoch, where the last `lap` learned of them.
    """

    def __init__(self, gpu: GpuClock | None = None) -> None:
        self._gpu = gpu
        self.gpu_phases: dict[str, float] = {}
        self._stack = [OTHER]
        self._seconds: dict[str, float] = {OTHER: 0.0}
        self._mark = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the body to `name`."""
        self._charge()
        self._stack.append(name)
        try:
            with record_function(name):
                yield
        finally:
            self._charge()
            self._stack.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count `seconds` of what `source` has taken to `target`: for work that timed its own parts."""
        self._charge()
        moved = min(max(seconds, 0.0), self._seconds.get(source, 0.0))
        if moved > 0.0:
            self._seconds[source] -= moved
            self._seconds[target] = self._seconds.get(target, 0.0) + moved

    def lap(self) -> tuple[float, dict[str, float]]:
        """End the epoch: its seconds, and its phases, which sum to them."""
        self._charge()
        if self._gpu is not None:
            self.gpu_phases = self._gpu.lap()
            self._gpu.mark(self._stack[-1])
        phases, self._seconds = self._seconds, {OTHER: 0.0}
        return sum(phases.values()), phases

    def _charge(self) -> None:
        now = time.perf_counter()
        name = self._stack[-1]
        if self._gpu is not None:
            self._gpu.mark(name)
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._mark
        self._mark = now
