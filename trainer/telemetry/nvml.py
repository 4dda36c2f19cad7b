"""An NVIDIA GPU's load, memory and temperature, where nvidia-ml-py is installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from esper_overwatch.protocol.messages.events import SystemSample

logger = logging.getLogger(__name__)


class NvidiaGPU:
    """The device the run computes on, asked through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def find(cls, device: torch.device) -> NvidiaGPU | None:
        """NVML's view of a CUDA device; None where there is none or nvidia-ml-py is not installed."""
        if device.type != "cuda":
            return None
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            logger.info("no values of the GPU: nvidia-ml-py is not installed")
            return None
        try:
            nvml.nvmlInit()
            # By UUID: CUDA_VISIBLE_DEVICES numbers devices for torch, not for NVML.
            return cls(nvml, _handle(nvml, str(torch.cuda.get_device_properties(device).uuid)))
        except nvml.NVMLError as error:
            logger.warning("no figures of the GPU: %s", error)
            return None

    def fill(self, sample: SystemSample) -> None:
        """Put the GPU's figures into a sample; one that NVML refuses stays not measured."""
        nvml, handle = self._nvml, self._handle
        with self._refusals_logged():
            used = nvml.nvmlDeviceGetMemoryInfo(handle)
            sample.gpu_memory, sample.gpu_memory_total = int(used.used), int(used.total)
        with self._refusals_logged():
            sample.gpu_percent = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with self._refusals_logged():
            sample.gpu_celsius = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))

    @contextmanager
    def _refusals_logged(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            logger.debug("NVML: %s", error)


def _handle(nvml: Any, uuid: str) -> Any:
    """Find the handle of a device, or of a part of one (MIG), whose name begins otherwise."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
