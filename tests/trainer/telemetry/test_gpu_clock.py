"""The GPU's own clock: sampled, read late, and never waited for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from esper_overwatch.trainer.telemetry.gpu_clock import SAMPLE_EVERY_EPOCHS, GpuClock
from esper_overwatch.trainer.telemetry.timer import PhaseTimer, PhaseTimes


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


class Training:
    """Epochs of rounds, timed."""

    def __init__(self, device: Device) -> None:
        self.timer = PhaseTimer(GpuClock(device.event))

    def epoch(self, round: int, number: int) -> PhaseTimes:
        with self.timer.phase("train"), self.timer.phase("data"):
            pass
        return self.timer.lap((round, number))

    def told(self, round: int, numbers: Iterable[int]) -> dict[int, tuple[Any, dict[str, float]]]:
        """By epoch in which it was told: which epoch was measured, and its phases."""
        epochs = {number: self.epoch(round, number) for number in numbers}
        return {n: (times.gpu_epoch, times.gpu_phases) for n, times in epochs.items() if times.gpu_phases}


PHASES = pytest.approx({"train": 0.02, "data": 0.01, "other": 0.02})


def test_sampled_epoch_is_reported_after_gpu_passed_it() -> None:
    device = Device()
    run = Training(device)
    run.timer.lap()
    assert run.told(1, range(1, SAMPLE_EVERY_EPOCHS + 1)) == {}, "the device has not come so far"
    device.passed = device.issued
    assert run.told(1, [9, 10]) == {9: ((1, 1), PHASES)}
    issued = device.issued
    run.told(1, range(11, 2 * SAMPLE_EVERY_EPOCHS))
    assert device.issued == issued, "epochs between are not marked"


def test_a_sample_that_is_not_read_yet_is_not_overtaken() -> None:
    device = Device()
    run = Training(device)
    run.timer.lap()
    assert run.told(1, range(1, 3 * SAMPLE_EVERY_EPOCHS)) == {}
    device.passed = device.issued
    assert run.told(1, [24]) == {24: ((1, 1), PHASES)}


def test_what_lies_between_rounds_is_no_epoch() -> None:
    """Before, it was sampled as one, and what was read there was lost."""
    device = Device()
    run = Training(device)
    run.timer.lap()
    run.epoch(1, 1)
    with run.timer.phase("update"):
        pass
    device.passed = device.issued
    assert not run.timer.lap().gpu_phases
    assert not run.timer.lap().gpu_phases
    assert run.told(2, range(1, 8)) == {1: ((1, 1), PHASES)}
    with run.timer.phase("update"):
        pass
    run.timer.lap()
    assert run.told(3, [1]) == {}
    device.passed = device.issued
    assert run.told(3, [2]) == {2: ((3, 1), PHASES)}, "the ninth epoch is the first of round 3"


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
        told |= timer.lap((1, 1)).gpu_phases
    assert told["train"] > 0
