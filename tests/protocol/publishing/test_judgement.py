"""A loop is judged by its own rhythm: healthy ones raise nothing, sick ones what is wrong with them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch import PublishedRun
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.publishing.judgement import MAX_NONFINITE, SLOW_STEPS, StepPace
from esper_overwatch.protocol.runs import find_run
from tests.protocol.harness import until

CLOCK = """
import threading, time, types
from esper_overwatch import connect, publish
from esper_overwatch.protocol.publishing import run as run_module
from esper_overwatch.protocol.server import server, silence

passed, looked = 0.0, threading.Event()
clock = types.SimpleNamespace(
    monotonic=lambda: time.monotonic() + passed, time_ns=lambda: time.time_ns() + int(passed * 1e9)
)
server.time = clock
run_module.time_ns = clock.time_ns
silence.UNSEEN_SECONDS = 600.0  # of a busy machine: no process is stopped here
look = silence.SilenceWatch.look

def look_and_tell(*arguments):
    look(*arguments)
    looked.set()

silence.SilenceWatch.look = look_and_tell

def sleep(seconds):
    "Let time pass for the run, which looks at its loop meanwhile."
    global passed
    for _ in range(int(seconds / 3)):
        passed += 3
        looked.clear()
        assert looked.wait(300)

def train(steps, seconds):
    for _ in range(steps):
        run.log(loss=1.0)
        run.flush()
        sleep(seconds)

run = publish("loop")
"""
"""A loop whose clock runs as it sleeps, so that hours pass in seconds and a busy machine changes nothing."""


def anomalies(program: str) -> list[tuple[str, str, str, bool]]:
    """(source, kind, severity, active) of what a loop in a process of its own raises."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [(a.source, a.kind, a.severity, a.active) for a in raised()]


def raised() -> list[ev.Anomaly]:
    path = find_run("loop").path / "events.jsonl"
    return [event.data for event in read(path) if isinstance(event.data, ev.Anomaly)]


def test_nan_is_critical_until_values_are_finite_again(home: Path) -> None:
    program = """
from esper_overwatch import publish
with publish("loop") as run:
    for value in (1.0, float("nan"), 2.0, 3.0, float("inf"), 4.0, 5.0, 6.0, 7.0):
        run.log(loss=value, accuracy=0.5)
    run.log(loss=float("nan"))
"""
    begun, over = ("loss", "nonfinite", "critical", True), ("loss", "nonfinite", "critical", False)
    assert anomalies(program) == [begun, over, begun]
    assert [a.hint for a in raised()] == ["nan at step 1", "", "nan at step 9"]


def test_steady_slow_loop_that_pauses_raises_nothing(home: Path) -> None:
    pause = """
def pause():
    with connect("loop") as client:
        client.pause(wait=True)
        sleep(900)
        client.resume(wait=True)

train(9, 27)
run.pause_point()
thread = threading.Thread(target=pause)
thread.start()
while thread.is_alive():
    run.pause_point()
train(3, 27)
for _ in range(6):  # a text is a sign of life, too
    run.log(note="it validates")
    run.flush()
    sleep(27)
run.finish()
"""
    assert anomalies(CLOCK + pause) == []


def test_hanging_loop_is_silent_and_slow_steps_are_told(home: Path) -> None:
    program = """
train(13, 6)
sleep(48)       # the warning
sleep(200)      # now critical
train(1, 6)     # it goes on; one slow step is none
train(3, 6)
train(4, 60)    # shorter than it was silent before
train(4, 6)
run.finish()
"""
    found = anomalies(CLOCK + program)
    assert found == [
        ("loop", "silent", "warning", True),
        ("loop", "silent", "critical", True),
        ("loop", "silent", "critical", False),
        ("loop", "slow_steps", "warning", True),
        ("loop", "slow_steps", "warning", False),
    ]
    warning, critical, _, slow, _ = raised()
    assert warning.value is not None
    assert warning.threshold is not None
    assert critical.threshold is not None
    assert warning.threshold <= warning.value < critical.threshold
    assert "usual" in warning.hint
    assert slow.value is not None
    assert slow.value > 5.0


@given(st.floats(1e-4, 1e3), st.lists(st.floats(0.5, 1.5), min_size=20, max_size=150), st.integers(1, 50))
def test_steady_pace_with_jitter_is_never_slow(interval: float, jitter: list[float], stride: int) -> None:
    pace, now = StepPace(), 0.0
    for i, factor in enumerate(jitter):
        assert pace.judge(now, i * stride) is None
        now += interval * factor
    for i in range(len(jitter), len(jitter) + 3 * SLOW_STEPS):
        found = pace.judge(now, i * stride)
        now += max(6.0, 6 * interval * 1.5)
    counted = len(jitter) * interval > 30.0
    assert found is not None or not counted


def test_steps_counted_in_several_ways_are_not_slow() -> None:
    """Epochs beside batches, and batches that are logged more and more seldom."""
    pace = StepPace()
    for batch in range(200):
        assert pace.judge(2.0 * batch, batch) is None
        assert pace.judge(2.0 * batch, batch // 50) is None
    for batch in range(200, 400, 20):
        assert pace.judge(2.0 * batch, batch) is None


def test_diverged_loop_with_many_metrics_tells_of_some(run: PublishedRun) -> None:
    run.log({f"m{i}": math.nan for i in range(MAX_NONFINITE + 9)})
    run.log(m0=1.0)
    run.flush()
    run.finish()
    assert len(raised()) == MAX_NONFINITE


@pytest.mark.parametrize(("better", "sign"), [("max", 1.0), ("min", -1.0)])
def test_watched_metric_that_stalls_is_told_until_better(run: PublishedRun, better: str, sign: float) -> None:
    run.watch("score", better=better, patience=5)  # type: ignore[arg-type]
    for step, value in enumerate((1.0, 2.0, 2.0, 1.5, math.nan, 1.0, 0.0, 1.0, 3.0, 1.0)):
        run.log(step=step, score=sign * value, other=0.0)
    until(lambda: len([a for a in raised() if a.kind == "stalled"]) == 2)
    first, second = (a for a in raised() if a.kind == "stalled")
    assert (first.source, first.severity, first.active, first.value) == ("score", "warning", True, 5.0)
    assert "of step 1" in first.hint
    assert not second.active


@pytest.mark.parametrize(
    ("name", "better", "patience", "word"),
    [("a//b", "max", 1, "name"), ("a", "more", 1, "better"), ("a", "max", 0, "patience")],
)
def test_watch_refuses_what_makes_no_sense(
    run: PublishedRun, name: str, better: str, patience: int, word: str
) -> None:
    with pytest.raises(PublishError, match=word):
        run.watch(name, better=better, patience=patience)  # type: ignore[arg-type]


def test_published_run_samples_its_machine(run: PublishedRun) -> None:
    path = find_run("loop").path / "events.jsonl"
    found = until(lambda: [e.data for e in read(path) if isinstance(e.data, ev.SystemSample)])
    assert found[0].rss > 0
    assert found[0].disk_free > 0
    assert found[0].gpu_allocated is None
