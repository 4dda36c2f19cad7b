"""Courses made of other courses: smoothed, and shifted; and one that never changes."""

from __future__ import annotations

from math import ceil, log
from typing import Protocol

from .time_series import Bucket

SETTLED = 0.01
"""Weight of all earlier values at which a smoothed course may begin."""


class Course(Protocol):
    """Anything that can be drawn over time."""

    def buckets(self, now: int, window: int, count: int) -> list[Bucket | None]:
        """See `History.buckets`."""

    def means(self, now: int, window: int, count: int) -> list[float | None]:
        """The means of these buckets."""
        return [None if each is None else each.mean for each in self.buckets(now, window, count)]


class Smoothed(Course):
    """The exponential moving average of a course's means, per bucket.

    `s = weight * s + (1 - weight) * mean` with a weight from 0 to below 1, divided by `1 - weight ** n` while
    it begins (as Adam corrects its averages). It begins to the left of the picture, which therefore does not
    depend on its edge.
    """

    def __init__(self, course: Course, weight: float) -> None:
        self._course = course
        self._weight = weight
        self._before = ceil(log(SETTLED) / log(weight)) if weight > 0 else 0

    def buckets(self, now: int, window: int, count: int) -> list[Bucket | None]:
        """One value a bucket; None where nothing was measured."""
        means = self.means(now, window, count)
        return [None if mean is None else Bucket(mean, mean, mean) for mean in means]

    def means(self, now: int, window: int, count: int) -> list[float | None]:
        dt = max(window // count, 1)
        longer = count + self._before
        smoothed: list[float | None] = []
        total, known = 0.0, 1.0
        for mean in self._course.means(now, dt * longer, longer):
            if mean is None:
                smoothed.append(None)
                continue
            total = self._weight * total + (1.0 - self._weight) * mean
            known *= self._weight
            smoothed.append(total / (1.0 - known))
        return smoothed[self._before :]


class Shifted(Course):
    """A course moved by microseconds; negative is earlier."""

    def __init__(self, course: Course, by: int) -> None:
        self._course = course
        self._by = by

    def buckets(self, now: int, window: int, count: int) -> list[Bucket | None]:
        return self._course.buckets(now - self._by, window, count)


class Level(Course):
    """A value that holds at all times, drawn as a line across the window."""

    def __init__(self, value: float) -> None:
        self._value = value

    def buckets(self, now: int, window: int, count: int) -> list[Bucket | None]:  # noqa: ARG002
        return [Bucket(self._value, self._value, self._value)] * count
