"""What PyTorch holds of a GPU's memory is in the samples of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from esper_overwatch.protocol.messages.events import SystemSample
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.trainer.telemetry.allocator import fill_allocator, sample_device
from esper_overwatch.trainer.telemetry.signal_values import system_readings
from tests.protocol.values import an_event


def test_cpu_has_no_gpu_in_its_samples(tmp_path: Path) -> None:
    sample = sample_device(tmp_path, torch.device("cpu"), lambda sample: None).sample()
    assert (sample.gpu_percent, sample.gpu_memory) == (None, None)
    assert (sample.gpu_allocated, sample.gpu_reserved, sample.gpu_fragmentation) == (None, None, None)


@pytest.mark.parametrize("reserved", [0, 600, 880, 960])
def test_allocator_is_sampled_and_a_full_device_warned_of(
    monkeypatch: pytest.MonkeyPatch, reserved: int
) -> None:
    """As on a device of 1000 bytes without NVML."""
    statistics = {
        "allocated_bytes.all.current": reserved // 2,
        "reserved_bytes.all.current": reserved,
        "inactive_split_bytes.all.current": reserved // 4,
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: statistics)
    properties = SimpleNamespace(total_memory=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    sample = an_event(SystemSample, memory_total=100, memory_used=10)
    fill_allocator(sample, torch.device("cuda", 0))
    assert (sample.gpu_allocated, sample.gpu_reserved) == (reserved // 2, reserved)
    assert sample.gpu_fragmentation == (0.25 if reserved else 0.0)
    share = system_readings(sample)["system.memory"]
    assert share == max(0.1, reserved / 1000)
    told = {0: None, 600: None, 880: "warning", 960: "critical"}
    assert THRESHOLDS["memory"].severity(share) == told[reserved]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_allocator_of_a_real_gpu(tmp_path: Path) -> None:
    held = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    sample = sample_device(tmp_path, torch.device("cuda", 0), lambda sample: None).sample()
    assert sample.gpu_allocated is not None
    assert sample.gpu_reserved is not None
    assert sample.gpu_memory_total is not None
    assert held.numel() <= sample.gpu_allocated <= sample.gpu_reserved <= sample.gpu_memory_total
    assert sample.gpu_fragmentation is not None
    assert 0.0 <= sample.gpu_fragmentation < 1.0
    assert system_readings(sample)["system.memory"] >= sample.gpu_reserved / sample.gpu_memory_total


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_real_gpu(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    held = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    sample = sample_device(tmp_path, torch.device("cuda", 0), lambda sample: None).sample()
    assert sample.gpu_memory is not None
    assert sample.gpu_memory_total is not None
    assert held.numel() <= sample.gpu_memory <= sample.gpu_memory_total
    assert sample.gpu_percent is not None
