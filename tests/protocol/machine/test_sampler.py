"""The machine's figures are real ones, and sampling never ends the run."""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from esper_overwatch.protocol.machine import nvidia
from esper_overwatch.protocol.machine.cgroup import granted_cores
from esper_overwatch.protocol.machine.nvidia import NvidiaGPU
from esper_overwatch.protocol.machine.sampler import SystemSampler
from esper_overwatch.protocol.messages.events import SystemSample


def test_samples_arrive_and_stop(tmp_path: Path) -> None:
    samples: list[SystemSample] = []
    two = threading.Event()

    def publish(sample: SystemSample) -> None:
        samples.append(sample)
        if len(samples) == 2:
            two.set()

    sampler = SystemSampler(tmp_path, publish, interval=0.01)
    sampler.start()
    assert two.wait(300)
    sampler.close()
    count = len(samples)
    sample = samples[-1]
    assert abs(sample.rss - psutil.Process().memory_info().rss) < 2**30
    assert 0 < sample.memory_used <= sample.memory_total
    assert sample.cores == granted_cores()
    assert sample.machine_cores == os.cpu_count()
    assert sample.machine_cpu_percent is None or 0 <= sample.machine_cpu_percent <= 100
    assert sample.disk_free > 0
    assert not any(thread.name == "system-sampler" for thread in threading.enumerate())
    assert len(samples) == count


@pytest.mark.parametrize("gone", [False, True], ids=["an error", "no folder"])
def test_what_cannot_be_sampled_is_said_once_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: bool
) -> None:
    folder, works = tmp_path / "run", threading.Event()
    if not gone:
        folder.mkdir()
    again = threading.Event()
    sampler = SystemSampler(folder, lambda sample: again.set(), interval=0.005)
    failures, failed = list[int](), threading.Event()
    real = sampler.sample

    def sample() -> SystemSample:
        try:
            if not (gone or works.is_set()):
                raise OSError("no such figure")
            return real()
        except OSError:
            failures.append(1)
            if len(failures) == 2:  # the first one has been told of
                failed.set()
            raise

    sampler.sample = sample  # type: ignore[method-assign]
    sampler.start()
    assert failed.wait(300)
    folder.mkdir(exist_ok=True)
    works.set()
    assert again.wait(300)
    sampler.close()
    told = sum("cannot be sampled" in record.message for record in caplog.records)
    assert told == (not gone), "that a run's folder is gone, its server tells"


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
    sample = SystemSampler(tmp_path, lambda sample: None).sample()
    nvml = FakeNVML()
    nvml.refused = refused
    NvidiaGPU(nvml, [0]).fill(sample)
    every = {"memory": 5, "memory_total": 10, "percent": 71.0, "celsius": 40.0}
    found = {name: getattr(sample, f"gpu_{name}") for name in every}
    assert found == {name: None if name.startswith(refused) else value for name, value in every.items()}


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
    gpu = NvidiaGPU.find("12ab")
    assert gpu is not None
    assert gpu._handle == f"{kind}-12ab"


def test_machine_shows_what_other_processes_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two cores one works for others in half of the time, and waits for the disk are idle time."""
    clock = {"user": 0.0, "system": 0.0, "idle": 0.0, "iowait": 0.0, "guest": 0.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(_asdict=lambda: dict(clock)))
    sampler = SystemSampler(tmp_path, lambda sample: None)
    assert sampler.sample().machine_cpu_percent is None
    for name, seconds in {"user": 2.0, "guest": 1.0, "system": 1.0, "idle": 8.0, "iowait": 1.0}.items():
        clock[name] += seconds
    assert sampler.sample().machine_cpu_percent == 25.0


class TwoGPUs(FakeNVML):
    """NVML with two devices, and the process that computes on each."""

    def __init__(self, *users: int) -> None:
        self.users = list(users)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.users)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=self.users[handle])]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=handle, total=10)


@pytest.mark.parametrize(
    ("visible", "first", "later"), [(None, 0, 1), ("1,0", 1, 1), ("GPU-0", 0, 0), ("0,-1,1", 0, 0)]
)
def test_gpu_is_the_one_whose_memory_the_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, first: int, later: int
) -> None:
    nvml = TwoGPUs(1, 1)
    monkeypatch.setattr(nvidia, "DRIVER", tmp_path)
    monkeypatch.setattr(importlib, "import_module", lambda name: nvml)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sampler = SystemSampler(tmp_path, lambda sample: None)
    assert sampler.sample().gpu_memory == first
    nvml.users[1] = os.getpid()
    assert sampler.sample().gpu_memory == later


@pytest.mark.parametrize("visible", ["", "-1"])
def test_run_that_sees_no_gpu_samples_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setattr(nvidia, "DRIVER", tmp_path)
    monkeypatch.setattr(importlib, "import_module", lambda name: TwoGPUs(1, 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert SystemSampler(tmp_path, lambda sample: None).sample().gpu_memory is None
