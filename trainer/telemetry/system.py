"""Samples of the machine, once a second, from a thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from protocol.messages.events import SystemSample
from trainer.compute.cpu import count_cores

from .allocator import fill_allocator
from .nvml import NvidiaGPU

logger = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")


def memory(root: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> tuple[int, int]:
    """(total, used) bytes of what this process may use: the machine's, or its cgroup's where that is less.

    A batch system or a container kills at the cgroup's limit (cgroup v2), long before the machine is full.
    File cache that the kernel gives back on demand does not count as used.
    """
    machine = psutil.virtual_memory()
    total, used = machine.total, machine.total - machine.available
    try:
        path = next(line[3:] for line in membership.read_text().splitlines() if line.startswith("0::"))
        folder = root / path.strip("/")
        limit = (folder / "memory.max").read_text().strip()
        if limit != "max" and int(limit) < total:
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            total = int(limit)
            used = int((folder / "memory.current").read_text()) - int(statistics["inactive_file"])
    except (OSError, StopIteration):
        pass  # no cgroup v2 here: the machine's figures hold
    return total, used


class SystemSampler:
    """Samples until it is closed.

    Args:
        folder: the run's; the free space of its disk is sampled.
        device: where the run computes.
        publish: takes each sample, on the sampler's thread.
        interval: seconds between samples.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        publish: Callable[[SystemSample], None],
        *,
        interval: float = 1.0,
    ) -> None:
        self._folder = folder
        self._device = device
        self._publish = publish
        self._interval = interval
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the mark
        self._gpu = NvidiaGPU.find(device)
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
        total, used = memory()
        sample = SystemSample(
            cpu_percent=self._process.cpu_percent(),
            rss=self._process.memory_info().rss,
            memory_total=total,
            memory_used=used,
            load1=os.getloadavg()[0],
            cores=count_cores(),
            disk_free=psutil.disk_usage(str(self._folder)).free,
        )
        if self._gpu is not None:
            self._gpu.fill(sample)
        fill_allocator(sample, self._device)
        return sample

    def _run(self) -> None:
        failing = False
        while not self._closed.wait(self._interval):
            try:
                sample = self.sample()
            except (OSError, psutil.Error) as error:
                if not failing:
                    logger.warning("the machine cannot be sampled: %s; trying again each second", error)
                failing = True
                continue
            failing = False
            self._publish(sample)
