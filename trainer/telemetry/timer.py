"""Time of an epoch, on the clock and on the CPU, divided into named phases that sum to the total.

Phases nest: an inner one's time is not counted again in the outer one. What lies outside all of them is
`other`. A phase is also an annotation in the trace of a running profiler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.profiler import record_function

from .gpu_clock import EpochName, GpuClock

OTHER = "other"
_PAUSED = "paused"


@dataclass(frozen=True)
class PhaseTimes:
    """Time of an epoch, by phase."""

    seconds: float
    """Wall time."""
    phases: dict[str, float] = field(default_factory=dict)
    """Its parts, which sum to it."""
    cpu_phases: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the process, all its threads, in those parts."""
    gpu_phases: dict[str, float] = field(default_factory=dict)
    """Seconds that the GPU worked in those of `gpu_epoch`, where that has just become known."""
    gpu_epoch: EpochName | None = None
    """An epoch before this one."""


class PhaseTimer:
    """Wall seconds per phase since the last `lap`.

    Args:
        gpu: measures the phases on the GPU, where there is one.
    """

    def __init__(self, gpu: GpuClock | None = None) -> None:
        self._gpu = gpu
        self._stack = [OTHER]
        self._seconds: dict[str, float] = {OTHER: 0.0}
        self._cpu: dict[str, float] = {OTHER: 0.0}
        self._mark = time.perf_counter()
        self._cpu_mark = time.process_time()
        self._paused_seconds = 0.0

    @property
    def clock(self) -> float:
        """Wall seconds since some moment, without those in `paused`."""
        return time.perf_counter() - self._paused_seconds

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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count the time of the body to no phase, and to no lap."""
        try:
            with self.phase(_PAUSED):
                yield
        finally:
            self._paused_seconds += self._seconds.pop(_PAUSED)
            del self._cpu[_PAUSED]

    def divide(self, source: str, parts: Mapping[str, float]) -> None:
        """Count `parts` of what `source` has taken, seconds by name, to those names: work that timed itself.

        CPU time is divided in proportion, as threads work on several parts at once.
        """
        self._charge()
        for target, seconds in parts.items():
            if target == source:
                continue
            total = self._seconds.get(source, 0.0)
            moved = min(seconds, total)
            if moved > 0.0:
                cpu = self._cpu[source] * moved / total
                for times, amount in ((self._seconds, moved), (self._cpu, cpu)):
                    times[source] -= amount
                    times[target] = times.get(target, 0.0) + amount

    def lap(self, of_epoch: EpochName | None = None) -> PhaseTimes:
        """End an epoch: its seconds, and its phases, which sum to them.

        Args:
            of_epoch: which one; None = what lies between two rounds.
        """
        self._charge()
        gpu_phases: dict[str, float] = {}
        gpu_epoch: EpochName | None = None
        if self._gpu is not None:
            gpu_epoch, gpu_phases = self._gpu.lap(of_epoch)
            gpu_phases.pop(_PAUSED, None)
            self._gpu.mark(self._stack[-1])
        phases, self._seconds = self._seconds, {OTHER: 0.0}
        cpu_phases, self._cpu = self._cpu, {OTHER: 0.0}
        return PhaseTimes(sum(phases.values()), phases, cpu_phases, gpu_phases, gpu_epoch)

    def _charge(self) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        name = self._stack[-1]
        if self._gpu is not None:
            self._gpu.mark(name)
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._mark
        self._cpu[name] = self._cpu.get(name, 0.0) + cpu - self._cpu_mark
        self._mark, self._cpu_mark = now, cpu
