"""Judges what a loop logs by its own rhythm, in the I/O thread: `log` does not wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Literal

from esper_overwatch.protocol.messages.events import EventSpec, RunStateChanged, Scalars
from esper_overwatch.protocol.server.alarm import Alarm, Finding
from esper_overwatch.protocol.server.emitter import Emitted

KEPT_INTERVALS, MIN_INTERVALS = 100, 10
"""Newest step intervals of which the median is the usual one, and how many make it known."""
SLOW_TIMES = 5.0
"""Multiple of the usual interval from which on a step is slow."""
SLOW_STEPS = 3
"""In a row, before it is told of, and as many others before that is over."""
LEAST_SECONDS = 1.0
"""Shorter steps are measured together: a single one is at the mercy of the scheduler."""
FINITE_VALUES = 3
"""In a row, after which a metric counts as finite again."""
MAX_NONFINITE = 64
"""Metrics that are told of at once as not finite: one diverged loop may have thousands."""


class StepPace:
    """Compares the time of each step with the usual one; of steps beyond the newest only."""

    def __init__(self) -> None:
        self._intervals: deque[float] = deque(maxlen=KEPT_INTERVALS)
        self._mark: tuple[float, int] | None = None
        """Time and step from which the next interval is measured."""
        self._num_slow = self._num_usual = 0
        self._finding: Finding | None = None

    def pause(self) -> None:
        """The loop waits on purpose: the time until its next step is no interval."""
        self._mark = None

    def judge(self, seconds: float, step: int) -> Finding | None:
        """What there is to say of the pace, with this step.

        Args:
            seconds: when it was logged.
        """
        if self._mark is None:
            self._mark = seconds, step
            return self._finding
        passed, steps = seconds - self._mark[0], step - self._mark[1]
        if steps <= 0 or 0.0 <= passed < LEAST_SECONDS:
            return self._finding
        self._mark = seconds, step
        if passed > 0.0:  # else the clock was set back
            self._take(passed / steps)
        return self._finding

    def _take(self, interval: float) -> None:
        usual = median(self._intervals) if len(self._intervals) >= MIN_INTERVALS else None
        self._intervals.append(interval)
        if usual is None:
            return
        if interval < SLOW_TIMES * usual:
            self._num_slow, self._num_usual = 0, self._num_usual + 1
            if self._num_usual >= SLOW_STEPS:
                self._finding = None
            return
        self._num_slow, self._num_usual = self._num_slow + 1, 0
        if self._num_slow >= SLOW_STEPS:
            times = interval / usual
            hint = f"steps take {times:.0f} times their usual {usual:.3g} s: look at the machine"
            self._finding = Finding(severity="warning", value=times, threshold=SLOW_TIMES, hint=hint)


class _Watch:
    """A metric that is to become better; told of where it does not for `patience` steps."""

    def __init__(self, alarm: Alarm, sign: float, patience: int) -> None:
        self.alarm, self._sign, self._patience = alarm, sign, patience
        self._best: float | None = None
        self._best_step = 0

    def take(self, value: float, step: int) -> None:
        if isfinite(value) and (self._best is None or self._sign * value > self._sign * self._best):
            self._best, self._best_step = value, step
        waited = step - self._best_step
        if self._best is None or waited < self._patience:
            self.alarm.follow(None)
            return
        hint = f"not better than {self._best:.4g}, of step {self._best_step}, for {waited} steps"
        self.alarm.follow(
            Finding(severity="warning", value=float(waited), threshold=float(self._patience), hint=hint)
        )


class _Nonfinite:
    """A metric whose newest values were not all finite."""

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        self._num_finite = 0

    def take(self, value: float, step: int) -> None:
        if isfinite(value):
            self._num_finite += 1
            if self._num_finite >= FINITE_VALUES:
                self.alarm.follow(None)
        else:
            self._num_finite = 0
            hint = f"{value} at step {step}"
            self.alarm.follow(Finding(severity="critical", value=value, hint=hint))


class LoopJudge:
    """Raises `nonfinite`, `slow_steps` and, of metrics that are watched, `stalled`.

    Args:
        emit: takes the events.
    """

    def __init__(self, emit: Callable[[object], None]) -> None:
        self._emit = emit
        self._pace, self._slow = StepPace(), Alarm(emit, "loop", "slow_steps")
        self._nonfinite: dict[str, _Nonfinite] = {}
        self._watches: dict[str, _Watch] = {}

    def watch(self, name: str, better: Literal["max", "min"], patience: int) -> None:
        """Watch a metric from its next value on, in place of an earlier watch; from any thread."""
        old = self._watches.get(name)
        alarm = Alarm(self._emit, name, "stalled") if old is None else old.alarm
        self._watches[name] = _Watch(alarm, 1.0 if better == "max" else -1.0, patience)

    def observe(self, spec: EventSpec, events: Sequence[Emitted]) -> None:
        """See what is published; an `Observer` of the publisher."""
        if spec.cls is Scalars:
            for item in events:
                assert isinstance(item.event, Scalars)
                self._take(item.event.values, item.event.step)
            for item in (events[0], events[-1]):  # of those between that came at once the time says little
                assert isinstance(item.event, Scalars)
                self._slow.follow(self._pace.judge(item.ns / 1e9, item.event.step))
        elif spec.cls is RunStateChanged:
            self._pace.pause()

    def _take(self, values: Mapping[str, float], step: int) -> None:
        # One sum tells whether all are finite; where it overflows, each is looked at for nothing.
        if self._nonfinite or not isfinite(sum(values.values())):
            for name, value in values.items():
                self._take_value(name, value, step)
        if self._watches:
            for name, watch in list(self._watches.items()):
                if name in values:
                    watch.take(values[name], step)

    def _take_value(self, name: str, value: float, step: int) -> None:
        one = self._nonfinite.get(name)
        if one is None:
            if isfinite(value) or len(self._nonfinite) >= MAX_NONFINITE:
                return
            one = self._nonfinite[name] = _Nonfinite(Alarm(self._emit, name, "nonfinite"))
        one.take(value, step)
        if one.alarm.finding is None:
            del self._nonfinite[name]
