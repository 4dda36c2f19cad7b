"""Phases sum to the epoch, whatever nests and whatever fails."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from esper_overwatch.trainer.telemetry import timer as module
from esper_overwatch.trainer.telemetry.timer import PhaseTimer


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> PhaseTimer:
    """Each look at the clock is a second later than the one before; two threads are at work all the time."""
    ticks, work = itertools.count(), itertools.count(step=2)
    clocks = SimpleNamespace(perf_counter=lambda: float(next(ticks)), process_time=lambda: float(next(work)))
    monkeypatch.setattr(module, "time", clocks)
    return PhaseTimer()


def test_phases_nest_and_sum(timer: PhaseTimer) -> None:
    with timer.phase("train"), timer.phase("data"):
        pass
    with timer.phase("act"):
        pass
    times = timer.lap()
    seconds, phases = times.seconds, times.phases
    assert phases == {"other": 3.0, "train": 2.0, "data": 1.0, "act": 1.0}
    assert seconds == sum(phases.values()) == 7.0
    assert times.cpu_phases == {"other": 6.0, "train": 4.0, "data": 2.0, "act": 2.0}


def test_an_epoch_starts_at_nothing(timer: PhaseTimer) -> None:
    with timer.phase("train"):
        pass
    timer.lap()
    assert timer.lap().phases == {"other": 1.0}


def test_a_lap_within_a_phase_splits_it(timer: PhaseTimer) -> None:
    with timer.phase("telemetry"):
        assert timer.lap().phases == {"other": 1.0, "telemetry": 1.0}
    assert timer.lap().phases == {"other": 1.0, "telemetry": 1.0}


def test_a_phase_that_fails_is_counted_too(timer: PhaseTimer) -> None:
    with pytest.raises(RuntimeError), timer.phase("train"):
        raise RuntimeError
    with timer.phase("act"):
        pass
    assert timer.lap().phases == {"other": 3.0, "train": 1.0, "act": 1.0}


def test_work_that_timed_its_own_parts(timer: PhaseTimer) -> None:
    with timer.phase("train"):
        pass
    timer.divide("train", {"train": 0.5, "validate": 0.25})
    times = timer.lap()
    assert times.phases == {"other": 3.0, "train": 0.75, "validate": 0.25}
    assert times.cpu_phases == {"other": 6.0, "train": 1.5, "validate": 0.5}


def test_no_more_is_divided_than_there_is(timer: PhaseTimer) -> None:
    with timer.phase("train"):
        pass
    timer.divide("train", {"validate": 99.0})
    timer.divide("nothing", {"validate": 1.0})
    times = timer.lap()
    seconds, phases = times.seconds, times.phases
    assert (phases["train"], phases["validate"]) == (0.0, 1.0)
    assert seconds == sum(phases.values())


def test_a_pause_is_in_no_phase_and_in_no_lap(timer: PhaseTimer) -> None:
    began = timer.clock
    with timer.phase("commands"), timer.paused():
        pass
    with pytest.raises(RuntimeError), timer.paused():
        raise RuntimeError
    assert timer.clock - began == 7.0 - 2.0, "looks at the clock, but for those that ended a pause"
    times = timer.lap()
    assert times.phases == {"other": 5.0, "commands": 2.0}
    assert times.cpu_phases == {"other": 6.0, "commands": 4.0}
    assert times.seconds == 7.0
