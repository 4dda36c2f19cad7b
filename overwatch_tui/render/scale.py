"""The vertical axis of a chart: linear or logarithmic, from one round number to another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

STEPS = 8
"""A linear axis ends at a multiple of a round number that is at most 1/8 of what it spans."""
SMALLEST = 1e-30
"""Differences below are none, and so are values on a logarithmic axis: the counterpart of `MAX_VALUE`."""
_DIGITS = (1.0, 2.0, 5.0, 10.0)


class Scale(NamedTuple):
    """From the bottom to the top of a chart."""

    bottom: float
    top: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """0 at the bottom, 1 at the top; on a logarithmic axis whatever is not above its bottom is there."""
        if self.is_log:
            if value <= self.bottom:
                return 0.0
            return log10(value / self.bottom) / log10(self.top / self.bottom)
        return (value - self.bottom) / (self.top - self.bottom)

    def value(self, share: float) -> float:
        """Value at a share of the height."""
        if self.is_log:
            return float(self.bottom * (self.top / self.bottom) ** share)
        return self.top - (self.top - self.bottom) * (1.0 - share)


def make_scale(
    values: Collection[float], *, floor_at: float | None, limits: Sequence[float], is_log: bool
) -> Scale:
    """An axis that holds the values, and each limit that is as near to them as they span.

    The ends are round numbers, so that a new extreme seldom moves the whole picture.

    Args:
        values: what is drawn; at least one.
        floor_at: a value that a linear axis always holds, such as 0.
        is_log: asked for; without a value above 0 the axis is linear.
    """
    if is_log:
        positive = [value for value in values if value > SMALLEST]
        if positive:
            bottom, top = min(positive), max(positive)
            near = [limit for limit in limits if bottom / 10 <= limit <= top * 10 and limit > 0]
            bottom, top = min([bottom, *near]), max([top, *near])
            bottom, top = _round_down(bottom), _round_up(top)
            return Scale(bottom / 2, top * 2, True) if top <= bottom else Scale(bottom, top, True)
    bottom, top = min(values), max(values)
    if floor_at is not None:
        bottom, top = min(bottom, floor_at), max(top, floor_at)
    span = top - bottom
    largest = max(abs(top), abs(bottom))
    if span <= max(1e-6 * largest, SMALLEST):
        around = largest / 2 if largest > SMALLEST else 0.5
        return Scale(bottom - around, top + around)
    near = [limit for limit in limits if bottom - span <= limit <= top + span]
    bottom, top = min([bottom, *near]), max([top, *near])
    step = _round_down((top - bottom) / STEPS)
    return Scale(floor(bottom / step + 1e-9) * step, ceil(top / step - 1e-9) * step)


def _round_down(value: float) -> float:
    """The greatest of 1, 2 and 5 times a power of ten that is not greater."""
    power = 10.0 ** floor(log10(value))
    return max((digit * power for digit in _DIGITS if digit * power <= value * (1 + 1e-9)), default=power)


def _round_up(value: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** floor(log10(value))
    return min(digit * power for digit in _DIGITS if digit * power >= value * (1 - 1e-9))
