"""Phases sum to the epoch, whatever nests and whatever fails."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from trainer.telemetry import timer as module
from trainer.telemetry.timer import PhaseTimer


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> PhaseTimer:
    """Each look at the clock is a second later than the one before."""
    ticks = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    return PhaseTimer()


def test_phases_nest_and_sum(timer: PhaseTimer) -> None:
    with timer.phase("train"), timer.phase("data"):
        pass
    with timer.phase("act"):
        pass
    seconds, phases = timer.lap()
    assert phases == {"other": 3.0, "train": 2.0, "data": 1.0, "act": 1.0}
    assert seconds == sum(phases.values()) == 7.0


def test_an_epoch_starts_at_nothing(timer: PhaseTimer) -> None:
    with timer.phase("train"):
        pass
    timer.lap()
    assert timer.lap() == (1.0, {"other": 1.0})


def test_a_lap_within_a_phase_splits_it(timer: PhaseTimer) -> None:
    with timer.phase("telemetry"):
        assert timer.lap() == (2.0, {"other": 1.0, "telemetry": 1.0})
    assert timer.lap()[1] == {"other": 1.0, "telemetry": 1.0}


def test_a_phase_that_fails_is_counted_too(timer: PhaseTimer) -> None:
    with pytest.raises(RuntimeError), timer.phase("train"):
        raise RuntimeError
    with timer.phase("act"):
        pass
    assert timer.lap()[1] == {"other": 3.0, "train": 1.0, "act": 1.0}


def test_work_that_timed_its_own_parts(timer: PhaseTimer) -> None:
    with timer.phase("train"):
        pass
    timer.move("train", "validate", 0.25)
    timer.move("train", "validate", 99.0)  # never more than there is
    timer.move("nothing", "validate", 1.0)
    seconds, phases = timer.lap()
    assert (phases["train"], phases["validate"]) == (0.0, 1.0)
    assert seconds == sum(phases.values())
