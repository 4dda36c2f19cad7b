"""Samples of the machine, once a second or less often, from a thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from esper_overwatch.protocol.messages.events import SystemSample

from .cgroup import granted_cores, memory
from .nvidia import NvidiaGPU

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
"""Before the first sample, however long the interval is."""


class SystemSampler:
    """Samples until it is closed.

    Args:
        folder: the run's; the free space of its disk is sampled.
        publish: takes each sample, on the sampler's thread.
        interval: seconds between samples.
        find_gpu: finds the GPU that the process computes on; called once, on the sampler's thread.
        complete: puts in what only the caller can measure.
    """

    def __init__(
        self,
        folder: Path,
        publish: Callable[[SystemSample], None],
        *,
        interval: float = 1.0,
        find_gpu: Callable[[], NvidiaGPU | None] = NvidiaGPU.find_visible,
        complete: Callable[[SystemSample], None] = lambda _sample: None,
    ) -> None:
        self._folder = folder
        self._publish = publish
        self._interval = interval
        self._find_gpu, self._complete = find_gpu, complete
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the mark
        self._machine = _MachineClock()
        self._gpu: NvidiaGPU | None = None
        self._has_looked = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop sampling; waits for the sample in progress."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def sample(self) -> SystemSample:
        """Sample the machine now.

        Raises:
            OSError: the run's folder is gone.
            psutil.Error: the kernel refuses.
        """
        if not self._has_looked:
            self._has_looked = True
            self._gpu = self._find_gpu()
        total, used = memory()
        sample = SystemSample(
            cpu_percent=self._process.cpu_percent(),
            rss=self._process.memory_info().rss,
            memory_total=total,
            memory_used=used,
            load1=round(os.getloadavg()[0], 2),
            cores=granted_cores(),
            disk_free=psutil.disk_usage(str(self._folder)).free,
            machine_cpu_percent=self._machine.busy_percent(),
            machine_cores=os.cpu_count(),
        )
        if self._gpu is not None:
            self._gpu.fill(sample)
        self._complete(sample)
        return sample

    def _run(self) -> None:
        failing = False
        wait = min(FIRST_SECONDS, self._interval)
        while not self._closed.wait(wait):
            wait = self._interval
            try:
                sample = self.sample()
            except (OSError, psutil.Error) as error:
                if not failing and self._folder.exists():  # that a run's is gone, its server tells
                    logger.warning("the machine cannot be sampled: %s; trying again", error)
                failing = True
                continue
            failing = False
            self._publish(sample)


class _MachineClock:
    """Time that all cores together have worked; `psutil.cpu_percent` keeps one mark for the whole process."""

    def __init__(self) -> None:
        self._busy, self._total = _machine_seconds()

    def busy_percent(self) -> float | None:
        """Share of the time since the last call, of all cores, 0 to 100; None where no time has passed."""
        busy, total = _machine_seconds()
        worked, passed = busy - self._busy, total - self._total
        if passed <= 0:
            return None
        self._busy, self._total = busy, total
        return round(min(100.0, max(0.0, 100 * worked / passed)), 1)


def _machine_seconds() -> tuple[float, float]:
    """(busy, all) seconds of all cores since the machine was started; guests are in `user` already."""
    times = psutil.cpu_times()._asdict()
    total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total - times["idle"] - times.get("iowait", 0.0), total
