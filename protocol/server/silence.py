"""Judges from the beats of a trainer or a loop whether it has fallen silent, by its own rhythm."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from statistics import median

from esper_overwatch.protocol.messages.events import RunStarted
from esper_overwatch.protocol.messages.vocabulary import RunKindName, RunState

from .alarm import Alarm, Finding

MIN_INTERVALS = 5
"""Between beats that are known before silence is judged."""
KEPT_INTERVALS = 100
WARNING_TIMES = 5.0
"""Multiple of the usual interval."""
LONGEST_TIMES = 1.5
"""Multiple of the longest interval so far, below which a silence is not told of: a loop that validates for a
minute in each hour is silent then."""
CRITICAL_TIMES = 4.0
"""Multiple of the warning's limit."""
WARNING_SECONDS, CRITICAL_SECONDS = 5.0, 60.0
"""No shorter silence is told of."""
UNSEEN_SECONDS = 5.0
"""Between two looks, from which on the whole process was stopped, and not the loop alone."""


class SilenceWatch:
    """Raises `silent` of a run's trainer or loop; all times are monotonic, in seconds.

    Intervals shorter than those between the looks are taken for these, which are within the shortest silence.
    Where the run pauses or the process was stopped, silence counts from the end of that.

    Args:
        emit: takes the events.
        kind: says whether it is a trainer or a loop.
    """

    def __init__(self, emit: Callable[[object], None], kind: RunKindName, now: float) -> None:
        self._alarm = Alarm(emit, "loop" if kind == "published" else "trainer", "silent")
        self._intervals: deque[float] = deque(maxlen=KEPT_INTERVALS)
        self._num_intervals = 0
        self._longest = 0.0
        self._looked_at = self._begin = now
        self._beat_at: float | None = None
        """The beat from which an interval may be learnt; None after a pause."""
        self._newest = now

    def look(self, now: float, beat_at: float, state: RunState, started: RunStarted | None) -> None:
        """Judge the silence since the newest beat; about once a second."""
        cycle = started.episode_epochs if started is not None else 0
        self._alarm.follow(self.judge(now, beat_at, is_running=state == "TRAINING", cycle=cycle))

    def judge(self, now: float, beat_at: float, *, is_running: bool, cycle: int = 0) -> Finding | None:
        """What there is to say of the silence since a beat.

        Args:
            beat_at: time of the newest beat.
            is_running: it is to beat: it neither pauses nor starts nor ends.
            cycle: beats of which one interval is longer, as a round's with its update: so many are learnt.
        """
        unseen, self._looked_at = now - self._looked_at, now
        if not is_running or unseen > UNSEEN_SECONDS:
            self._begin, self._newest, self._beat_at = now, beat_at, None
            return None
        if beat_at != self._newest:
            if self._beat_at is not None:
                self._learn(beat_at - self._beat_at)
            self._begin = self._newest = self._beat_at = beat_at
        if self._num_intervals < MIN_INTERVALS + cycle:
            return None
        usual, silent = median(self._intervals), now - self._begin
        warning = max(WARNING_SECONDS, WARNING_TIMES * usual, LONGEST_TIMES * self._longest)
        critical = max(CRITICAL_SECONDS, CRITICAL_TIMES * warning)
        if silent < warning:
            return None
        is_critical = silent >= critical
        return Finding(
            severity="critical" if is_critical else "warning",
            value=silent / usual,
            threshold=(critical if is_critical else warning) / usual,
            hint=f"no sign of life for {silent:.0f} s, usually one within {ceil(usual)} s: does it hang?",
        )

    def _learn(self, interval: float) -> None:
        self._intervals.append(interval)
        self._num_intervals += 1
        self._longest = max(self._longest, interval)
