"""What PyTorch's allocator and device say of the GPU, in samples of the machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from esper_overwatch.protocol.machine.nvidia import NvidiaGPU
from esper_overwatch.protocol.machine.sampler import SystemSampler
from esper_overwatch.protocol.messages.events import SystemSample


def sample_device(
    folder: Path, device: torch.device, publish: Callable[[SystemSample], None]
) -> SystemSampler:
    """A sampler of the machine and of this device; not started yet."""
    return SystemSampler(
        folder,
        publish,
        find_gpu=partial(find_gpu, device),
        complete=partial(fill_allocator, device=device),
    )


def find_gpu(device: torch.device) -> NvidiaGPU | None:
    """NVML's view of a CUDA device; None where there is none, or nvidia-ml-py is not installed."""
    if device.type != "cuda":
        return None
    # By UUID: CUDA_VISIBLE_DEVICES numbers devices for torch, not for NVML.
    return NvidiaGPU.find(str(torch.cuda.get_device_properties(device).uuid))


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
