"""Where the time of an epoch goes, on the clock and on the CPU: named phases that sum to the whole.

Phases nest: an inner one's time is not counted again in the outer one. What lies outside all of them is
`other`. A phase is also an annotation in the trace of a running profiler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch.profiler import record_function

from .gpu_clock import GpuClock

OTHER = "other"


class PhaseTimer:
    """Wall seconds per phase since the last `lap`.

    Args:
        gpu: is told of the phases too, where there is one.

    Attributes:
        cpu_phases: CPU seconds of the process, all its threads, per phase of the last lap.
        gpu_phases: seconds of a GPU per phase of an earlier epoch, where the last `lap` learned of them.
    """

    def __init__(self, gpu: GpuClock | None = None) -> None:
        self._gpu = gpu
        self.cpu_phases: dict[str, float] = {}
        self.gpu_phases: dict[str, float] = {}
        self._stack = [OTHER]
        self._seconds: dict[str, float] = {OTHER: 0.0}
        self._cpu: dict[str, float] = {OTHER: 0.0}
        self._mark = time.perf_counter()
        self._cpu_mark = time.process_time()

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

    def divide(self, source: str, parts: Mapping[str, float]) -> None:
        """Count `parts` of what `source` has taken, seconds by name, to those names: work that timed itself.

        CPU time is divided in proportion, as threads work on several parts at once.
        """
        self._charge()
        for target, seconds in parts.items():
            if target == source:
                continue
            whole = self._seconds.get(source, 0.0)
            moved = min(seconds, whole)
            if moved > 0.0:
                cpu = self._cpu[source] * moved / whole
                for times, amount in ((self._seconds, moved), (self._cpu, cpu)):
                    times[source] -= amount
                    times[target] = times.get(target, 0.0) + amount

    def lap(self) -> tuple[float, dict[str, float]]:
        """End the epoch: its seconds, and its phases, which sum to them."""
        self._charge()
        if self._gpu is not None:
            self.gpu_phases = self._gpu.lap()
            self._gpu.mark(self._stack[-1])
        phases, self._seconds = self._seconds, {OTHER: 0.0}
        self.cpu_phases, self._cpu = self._cpu, {OTHER: 0.0}
        return sum(phases.values()), phases

    def _charge(self) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        name = self._stack[-1]
        if self._gpu is not None:
            self._gpu.mark(name)
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._mark
        self._cpu[name] = self._cpu.get(name, 0.0) + cpu - self._cpu_mark
        self._mark, self._cpu_mark = now, cpu
