"""The machine's figures are real ones, and sampling never ends the run."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from esper_overwatch.protocol.messages.events import SystemSample
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.trainer.compute.cgroup import granted_cores
from esper_overwatch.trainer.telemetry.nvml import NvidiaGPU
from esper_overwatch.trainer.telemetry.signal_values import system_readings
from esper_overwatch.trainer.telemetry.system import SystemSampler, fill_allocator

CPU = torch.device("cpu")


def test_samples_arrive_and_stop(tmp_path: Path) -> None:
    samples: list[SystemSample] = []
    two = threading.Event()

    def publish(sample: SystemSample) -> None:
        samples.append(sample)
        if len(samples) == 2:
            two.set()

    sampler = SystemSampler(tmp_path, CPU, publish, interval=0.01)
    sampler.start()
    assert two.wait(300)
    sampler.close()
    count = len(samples)
    sample = samples[-1]
    assert abs(sample.rss - psutil.Process().memory_info().rss) < 2**30
    assert 0 < sample.memory_used <= sample.memory_total
    assert sample.cores == granted_cores()
    assert sample.disk_free > 0
    assert (sample.gpu_percent, sample.gpu_memory) == (None, None)
    assert (sample.gpu_allocated, sample.gpu_reserved, sample.gpu_fragmentation) == (None, None, None)
    assert not any(thread.name == "system-sampler" for thread in threading.enumerate())
    assert len(samples) == count


def test_a_folder_that_is_gone_is_said_once_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    again = threading.Event()
    sampler = SystemSampler(folder, CPU, lambda sample: again.set(), interval=0.005)
    failed = threading.Event()
    real = sampler.sample

    def sample() -> SystemSample:
        try:
            return real()
        except OSError:
            failed.set()
            raise

    sampler.sample = sample  # type: ignore[method-assign]
    sampler.start()
    assert failed.wait(300)
    folder.mkdir()
    assert again.wait(300)
    sampler.close()
    assert sum("cannot be sampled" in record.message for record in caplog.records) == 1


class FakeNVML:
    """The part of NVML that is called; it refuses one figure."""

    NVML_TEMPERATURE_GPU = 0
    refused = ""

    class NVMLError(Exception):
        pass

    def answer(self, figure: str, value: Any) -> Any:
        if figure == self.refused:
            raise self.NVMLError("not supported")
        return value

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return self.answer("memory", SimpleNamespace(used=5, total=10))

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return self.answer("percent", SimpleNamespace(gpu=71))

    def nvmlDeviceGetTemperature(self, handle: Any, kind: int) -> Any:
        return self.answer("celsius", 40)


@pytest.mark.parametrize("refused", ["memory", "percent", "celsius"])
def test_only_what_the_gpu_refuses_stays_not_measured(tmp_path: Path, refused: str) -> None:
    sample = SystemSampler(tmp_path, CPU, lambda sample: None).sample()
    nvml = FakeNVML()
    nvml.refused = refused
    NvidiaGPU(nvml, handle=0).fill(sample)
    every = {"memory": 5, "memory_total": 10, "percent": 71.0, "celsius": 40.0}
    found = {name: getattr(sample, f"gpu_{name}") for name in every}
    assert found == {name: None if name.startswith(refused) else value for name, value in every.items()}


@pytest.mark.parametrize("reserved", [0, 600, 800, 960])
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
    sample = SystemSample(
        cpu_percent=0.0, rss=1, memory_total=100, memory_used=10, load1=0.0, cores=1, disk_free=1
    )
    fill_allocator(sample, torch.device("cuda", 0))
    assert (sample.gpu_allocated, sample.gpu_reserved) == (reserved // 2, reserved)
    assert sample.gpu_fragmentation == (0.25 if reserved else 0.0)
    share = system_readings(sample)["system.memory"]
    assert share == max(0.1, reserved / 1000)
    told = {0: None, 600: None, 800: "warning", 960: "critical"}
    assert THRESHOLDS["memory"].severity(share) == told[reserved]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_allocator_of_a_real_gpu(tmp_path: Path) -> None:
    held = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    sample = SystemSampler(tmp_path, torch.device("cuda", 0), lambda sample: None).sample()
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
    sample = SystemSampler(tmp_path, torch.device("cuda", 0), lambda sample: None).sample()
    assert sample.gpu_memory is not None
    assert sample.gpu_memory_total is not None
    assert held.numel() <= sample.gpu_memory <= sample.gpu_memory_total
    assert sample.gpu_percent is not None


@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_device_or_part_of_one_is_found_by_uuid(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    class Named(FakeNVML):
        def nvmlInit(self) -> None: ...

        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
            if uuid != f"{kind}-12ab":
                raise self.NVMLError("not found")
            return uuid

    found = Named()
    monkeypatch.setattr(importlib, "import_module", lambda name: found)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12ab"))
    gpu = NvidiaGPU.find(torch.device("cuda", 0))
    assert gpu is not None
    assert gpu._handle == f"{kind}-12ab"
