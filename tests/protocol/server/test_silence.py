"""Silence is told of by the rhythm of the beats, and never where a run is not to beat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import RunKindName
from esper_overwatch.protocol.server.silence import MIN_INTERVALS, SilenceWatch


class Run:
    """A run on a clock of its own, looked at once a second."""

    def __init__(self) -> None:
        self.now = self.beat_at = 100.0
        self.judge = SilenceWatch([].append, "published", self.now)

    def look(self, *, is_running: bool = True) -> Any:
        return self.judge.judge(self.now, self.beat_at, is_running=is_running)

    def beat_after(self, seconds: float) -> list[Any]:
        """What is found until the next beat."""
        end, found = self.now + seconds, []
        while self.now + 1.0 < end:
            self.now += 1.0
            found.append(self.look())
        self.now = self.beat_at = end
        return [*found, self.look()]


RHYTHMS = st.tuples(st.floats(0.01, 100.0), st.lists(st.floats(0.5, 1.5), min_size=12, max_size=40))


@given(RHYTHMS)
def test_steady_rhythm_is_never_silent_until_it_ends(rhythm: tuple[float, list[float]]) -> None:
    interval, jitter = rhythm
    run = Run()
    for factor in jitter:
        assert not any(run.beat_after(max(1.0, interval * factor)))
    begin, severities = run.now, []
    while (found := run.look()) is None or found.severity == "warning":
        severities.append((run.now - begin, found))
        run.now += 1.0
    first = next(age for age, found in severities if found)
    assert max(5.0, 2.5 * interval) <= first <= 1.0 + max(5.0, 7.5 * max(1.0, interval))
    assert 4 * (first - 1.0) <= run.now - begin
    assert run.now - begin >= 60.0
    assert found.value >= found.threshold
    run.beat_at = run.now
    assert run.look() is None


def test_silence_before_the_rhythm_is_known_says_nothing() -> None:
    run = Run()
    for _ in range(MIN_INTERVALS):
        assert not any(run.beat_after(2.0))
    assert not any(run.beat_after(1000.0))


def test_pause_is_no_silence_and_no_interval() -> None:
    run = Run()
    for _ in range(8):
        run.beat_after(2.0)
    for _ in range(500):
        run.now += 1.0
        assert run.look(is_running=False) is None
    assert not any(run.beat_after(9.0))
    assert any(run.beat_after(16.0))


def test_stopped_process_does_not_accuse_its_loop() -> None:
    run = Run()
    for _ in range(8):
        run.beat_after(2.0)
    run.now += 3600.0
    assert run.look() is None
    assert not any(run.beat_after(4.0))
    assert any(run.beat_after(16.0))


def test_loop_that_validates_for_long_is_told_of_once() -> None:
    run = Run()
    for _ in range(10):
        run.beat_after(1.0)
    assert any(run.beat_after(50.0))
    for _ in range(3):
        for _ in range(10):
            assert not any(run.beat_after(1.0))
        assert not any(run.beat_after(60.0))


@pytest.mark.parametrize(("kind", "source"), [("training", "trainer"), ("published", "loop")])
def test_trainer_is_judged_after_a_whole_round(kind: RunKindName, source: str) -> None:
    """The first round's update may compile; an ended run is not silent."""
    now, emitted = 0.0, list[Any]()
    watch = SilenceWatch(emitted.append, kind, now)
    started: Any = SimpleNamespace(episode_epochs=25 if source == "trainer" else 0)

    def pass_time(seconds: int, beats: bool, state: Any = "TRAINING") -> None:
        nonlocal now, beat_at
        for _ in range(seconds):
            now += 1.0
            beat_at = now if beats else beat_at
            watch.look(now, beat_at, state, started)

    beat_at = now
    pass_time(25, beats=True)
    pass_time(50, beats=False)
    assert bool(emitted) == (source == "loop")
    pass_time(30, beats=True)
    pass_time(100, beats=False)
    last = emitted[-1]
    assert isinstance(last, ev.Anomaly)
    assert (last.source, last.kind, last.active) == (source, "silent", True)
    pass_time(1, beats=False, state="STOPPING")
    assert not emitted[-1].active
