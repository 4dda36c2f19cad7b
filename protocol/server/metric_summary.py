"""Content of `1/view` for a fifth of a second: the newest metric of each type, and spans of the others."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite

from esper_overwatch.protocol.codec.json_lines import Batch
from esper_overwatch.protocol.messages.headers import Window

from .emitter import Emitted


class MetricSummary:
    """Collects between two views. One thread owns it."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Batch, int]] = {}
        self._came: dict[str, list[object]] = {}
        self._watched = False

    def extend(self, type_: str, events: Sequence[Emitted], batch: Batch, begin: int) -> None:
        """Take in events of one type whose lines are in the batch, from `begin` on."""
        self._newest[type_] = batch, begin + len(events) - 1
        if self._watched:
            self._came.setdefault(type_, []).extend([item.event for item in events])

    def take(self, *, watched: bool) -> tuple[list[bytes], dict[str, Window]]:
        """The newest lines by number, and a window of each type of which more than one has come.

        Args:
            watched: whether windows are wanted from now on; without a reader they are not worth their time.
        """
        newest = sorted(self._newest.values(), key=lambda one: one[0].first + one[1])
        windows = {type_: _window(events) for type_, events in self._came.items() if len(events) > 1}
        self._newest.clear()
        self._came.clear()
        self._watched = watched
        return [batch.line(index) for batch, index in newest], windows


def _window(events: Sequence[object]) -> Window:
    lowest, mean, highest = {}, {}, {}
    for name in vars(events[0]):
        column = [getattr(event, name) for event in events]
        values = [value for value in column if type(value) in (float, int) and isfinite(value)]
        if values:
            lowest[name], highest[name] = min(values), max(values)
            mean[name] = fsum(values) / len(values)
    return Window(n=len(events), min=lowest, mean=mean, max=highest)
