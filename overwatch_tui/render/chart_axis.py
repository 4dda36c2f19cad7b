"""The horizontal axis of all charts: the run's steps, the time since it began, or the clock."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.curves import Curves
from esper_overwatch.overwatch_tui.model.step_series import STEP

from .format import format_clock, format_count, format_duration

CLOCK, ELAPSED, STEPS, ROUNDS = "clock", "time", "step", "round"
"""Round: steps of a training, counted in rounds."""
MAX_ZOOM = 6
"""Times that the axis of steps can be halved."""
_ROUND_NUMBERS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


class ChartAxis(NamedTuple):
    """What a plot spans, in microseconds, or in thousandths of a step (`STEP`)."""

    now: int
    """Right edge."""
    window: int
    """From the left edge to the right one."""
    is_past: bool = False
    """True if the right edge is not the present: the axis then names the times of both edges."""
    kind: str = CLOCK
    zero: int = 0
    """Begin of the run, microseconds, from which elapsed time is counted."""
    per_unit: int = 1
    """Steps of the unit that is named: the epochs of a round."""
    unit: str = "step"

    @property
    def is_by_step(self) -> bool:
        return self.kind in (STEPS, ROUNDS)

    @property
    def name(self) -> str:
        """Span in words, such as `15m` or `1.2k steps`."""
        if self.is_by_step:
            return f"{self._number(self.window)} {self.unit}s"
        return _duration(self.window)

    def label(self, at: int) -> str:
        """A place on the axis in words."""
        if self.is_by_step:
            return f"{self.unit} {self._number(at)}"
        if self.kind == ELAPSED:
            return format_duration((at - self.zero) / 1e6)
        return format_clock(at)

    @property
    def edges(self) -> tuple[str, str]:
        """Words for the left edge and the right one."""
        begin = self.now - self.window
        if self.is_by_step:
            return self._number(begin), self.label(self.now)
        if self.kind == ELAPSED:
            return format_duration(max(0, begin - self.zero) / 1e6), self.label(self.now)
        if self.is_past:
            return format_clock(begin), format_clock(self.now)
        return f"-{_duration(self.window)}", "now"

    def _number(self, at: int) -> str:
        value = at / STEP / self.per_unit
        return format_count(value) if value >= 1_000 else f"{value:.4g}"


def axis_kinds(curves: Curves) -> tuple[str, ...]:
    """The kinds that a run has, in the order of the key."""
    return (STEPS, ROUNDS, ELAPSED, CLOCK) if curves.epochs_per_round else (STEPS, ELAPSED, CLOCK)


def step_axis(curves: Curves, *, by_round: bool, zoom: int, end: int | None, others: int = 0) -> ChartAxis:
    """All steps up to a round number, so that a new step seldom moves the picture; or the last part of them.

    Args:
        zoom: how often it is halved.
        end: right edge that was chosen.
        others: the greatest step of runs that are compared.
    """
    newest, first = max(curves.max_step, others), curves.first_step or 0
    begin = first if first > newest / 2 else 0
    whole = _round_up(max(1, newest - begin)) * STEP
    window = max(STEP, whole >> zoom)
    right = begin * STEP + whole
    if zoom:
        part = max(STEP, window // 8)
        right = -(-newest * STEP // part) * part
    epochs = curves.epochs_per_round
    return ChartAxis(
        right if end is None else end,
        window,
        end is not None,
        ROUNDS if by_round else STEPS,
        per_unit=epochs if by_round and epochs else 1,
        unit="round" if by_round else "epoch" if epochs else "step",
    )


def _round_up(steps: int) -> int:
    power = 10.0 ** floor(log10(steps))
    return ceil(next(digit * power for digit in _ROUND_NUMBERS if digit * power >= steps))


def _duration(microseconds: int) -> str:
    """`15m`, `6h`, `7d`: in the largest unit that divides it."""
    minutes = microseconds // 60_000_000
    for size, unit in ((1440, "d"), (60, "h")):
        if minutes >= size and minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"
