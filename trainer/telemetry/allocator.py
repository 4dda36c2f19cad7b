"""Memory that PyTorch's caching allocator holds of a CUDA device."""

from __future__ import annotations

import torch

from esper_overwatch.protocol.messages.events import SystemSample


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
