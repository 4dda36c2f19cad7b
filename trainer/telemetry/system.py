"""Samples of the machine, once a second, from a thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from esper_overwatch.protocol.messages.events import SystemSample
from esper_overwatch.trainer.compute.cgroup import granted_cores, memory

from .nvml import NvidiaGPU

logger = logging.getLogger(__name__)


class SystemSampler:
    """Samples until it is closed.

    Args:
        folder: the run's; the free space of its disk is sampled.
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
            cores=granted_cores(),
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


def fill_allocator(sample: SystemSample, device: torch.device) -> None:
    """Put the allocator's figures into a sample; nothing on a CPU.

    Reads counters of this process and does not wait for the device. The device's total is filled in where
    NVML is not there to give it.
    """
    if device.type != "cuda":
        return
    statistics = torch.cuda.memory_stats(device)
    reserved = statistics.get("reserved_bytes.all.current", 0)
    sample.gpu_allocated = statistics.get("allocated_bytes.all.current", 0)
    sample.gpu_reserved = reserved
    split = statistics.get("inactive_split_bytes.all.current", 0)
    sample.gpu_fragmentation = split / reserved if reserved else 0.0
    if sample.gpu_memory_total is None:
        sample.gpu_memory_total = torch.cuda.get_device_properties(device).total_memory
