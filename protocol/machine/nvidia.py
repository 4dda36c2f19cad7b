"""An NVIDIA GPU's load, memory and temperature, where nvidia-ml-py is installed."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.messages.events import SystemSample

logger = logging.getLogger(__name__)

DRIVER = Path("/dev/nvidiactl")
"""There where a driver is loaded; without one NVML need not be asked."""


class NvidiaGPU:
    """The device the run computes on, asked through NVML.

    Args:
        nvml: the module.
        handles: of the devices it may be; the first, until the process holds memory of another.
    """

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handle = handles[0]
        self._candidates = handles if len(handles) > 1 else ()

    @classmethod
    def find(cls, uuid: str) -> NvidiaGPU | None:
        """NVML's view of a device, or of a part of one (MIG).

        Args:
            uuid: without the prefix `GPU-` or `MIG-`.

        Returns:
            None where nvidia-ml-py is not installed or NVML fails, which is logged.
        """
        nvml = _load()
        if nvml is None:
            logger.info("no values of the GPU: nvidia-ml-py is not installed")
            return None
        try:
            nvml.nvmlInit()
            return cls(nvml, [_handle(nvml, uuid)])
        except nvml.NVMLError as error:
            logger.warning("no figures of the GPU: %s", error)
            return None

    @classmethod
    def find_visible(cls) -> NvidiaGPU | None:
        """The device of a process that has not said which: the one of those it sees whose memory it holds.

        In a container, where processes have other numbers than NVML knows, it is the first that it sees.
        None where there is none, or nvidia-ml-py is not installed.
        """
        if not DRIVER.exists() or (nvml := _load()) is None:
            return None
        try:
            nvml.nvmlInit()
            handles = _visible_handles(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
            return cls(nvml, handles) if handles else None
        except nvml.NVMLError as error:
            logger.info("no figures of the GPU: %s", error)
            return None

    def fill(self, sample: SystemSample) -> None:
        """Put the GPU's figures into a sample; one that NVML refuses stays not measured."""
        with self._refusals_logged():
            self._choose()
        nvml, handle = self._nvml, self._handle
        with self._refusals_logged():
            used = nvml.nvmlDeviceGetMemoryInfo(handle)
            sample.gpu_memory, sample.gpu_memory_total = int(used.used), int(used.total)
        with self._refusals_logged():
            sample.gpu_percent = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with self._refusals_logged():
            sample.gpu_celsius = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))

    def _choose(self) -> None:
        """Settle on the device whose memory this process holds, once it holds any."""
        for handle in self._candidates:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if any(process.pid == os.getpid() for process in processes):
                self._handle, self._candidates = handle, ()
                return

    @contextmanager
    def _refusals_logged(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            logger.debug("NVML: %s", error)


def _load() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _visible_handles(nvml: Any, visible: str | None) -> list[Any]:
    """Handles of the devices that a value of `CUDA_VISIBLE_DEVICES` leaves, in its order."""
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    names = list(itertools.takewhile(lambda name: not name.startswith("-"), names))  # -1 ends the list
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]


def _handle(nvml: Any, uuid: str) -> Any:
    """Find the handle of a device, or of a part of one (MIG), whose name begins otherwise."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
