"""The GPU's own clock: sampled, read late, and never waited for."""

from __future__ import annotations

import pytest
import torch

from trainer.telemetry.gpu_clock import SAMPLE_EVERY_EPOCHS, GpuClock
from trainer.telemetry.timer import PhaseTimer


class Device:
    """A GPU that is some marks behind what was issued; each mark is 10 ms after the one before."""

    def __init__(self) -> None:
        self.issued, self.passed = 0, 0

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.device.issued += 1
        self.at = self.device.issued

    def query(self) -> bool:
        return self.at <= self.device.passed

    def elapsed_time(self, end_event: Event) -> float:
        assert end_event.query(), "reading this would have failed"
        return 10.0 * (end_event.at - self.at)


def epoch(timer: PhaseTimer) -> dict[str, float]:
    with timer.phase("train"), timer.phase("data"):
        pass
    return timer.lap().gpu_phases


@pytest.mark.finding("HP-8")
def test_sampled_epoch_is_reported_after_gpu_passed_it() -> None:
    device = Device()
    timer = PhaseTimer(GpuClock(device.event))
    timer.lap()
    early = [epoch(timer) for _ in range(SAMPLE_EVERY_EPOCHS)]
    assert early == [{}] * SAMPLE_EVERY_EPOCHS, "the device has not come so far"
    device.passed = device.issued
    assert epoch(timer) == pytest.approx({"train": 0.02, "data": 0.01, "other": 0.02})
    assert epoch(timer) == {}
    issued = device.issued
    for _ in range(SAMPLE_EVERY_EPOCHS - 4):
        epoch(timer)
    assert device.issued == issued, "epochs between are not marked"


def test_a_sample_that_is_not_read_yet_is_not_overtaken() -> None:
    device = Device()
    timer = PhaseTimer(GpuClock(device.event))
    for _ in range(3 * SAMPLE_EVERY_EPOCHS):
        assert epoch(timer) == {}
    device.passed = device.issued
    assert epoch(timer)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_gpu_tells_its_seconds() -> None:
    timer = PhaseTimer(GpuClock())
    x = torch.ones(2048, 2048, device="cuda")
    told = {}
    for _ in range(3 * SAMPLE_EVERY_EPOCHS):
        with timer.phase("train"):
            x = x @ x.clamp(-1, 1)
        torch.cuda.synchronize()
        told |= timer.lap().gpu_phases
    assert told["train"] > 0
