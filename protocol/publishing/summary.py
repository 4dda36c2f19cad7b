"""Summary of a run: last, least, greatest and mean of each metric, and values set by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.errors import PublishError, WireError
from esper_overwatch.protocol.journal.reader import lines_newest_first
from esper_overwatch.protocol.messages.events import MetricStatistics, Scalars, Summary

from .values import Note, as_number, sort_values

MAX_SET_BY_HAND = 1_000
SEND_SECONDS = 10.0
"""Between two events `summary`, of a run with few metrics."""
FIRST_SECONDS = 1.0
"""After which a metric that is new is in an event."""
NAMES_PER_INTERVAL = 100
"""The interval grows by `SEND_SECONDS` for each such number of metrics."""


class RunSummary:
    """The summary of a published run: `run.summary["best_accuracy"] = 0.93` sets a value by hand.

    Safe from any thread.

    Args:
        check: raises a PublishError where nothing can be set any more.
        note: is told of what cannot be set, see `sort_values`; None = that is an error.
    """

    def __init__(self, check: Callable[[], None] = lambda: None, note: Note | None = None) -> None:
        self._check, self._note = check, note
        self._lock = threading.RLock()
        self._metrics: dict[str, MetricStatistics] = {}
        self._numbers: dict[str, int | float] = {}
        self._texts: dict[str, str] = {}
        self._step = -1
        self._is_changed = False
        self._has_news = False
        self._sent_at = 0.0

    def __setitem__(self, name: str, value: object) -> None:
        """Set a value by hand.

        Raises:
            PublishError: of a run that is strict: the name or the value cannot be published, or it has ended.
        """
        try:
            self._check()
            found = sort_values({name: value}, self._note)
            if found.arrays or found.files:
                raise PublishError(f"summary {name} = a {type(value).__name__}: must be a number or text")
            numbers = {name: as_number(number) for name, number in found.numbers.items()}
            with self._lock:
                if len({*self._numbers, *self._texts, *numbers, *found.texts}) > MAX_SET_BY_HAND:
                    raise PublishError(f"summary {name}: {MAX_SET_BY_HAND} values are set already")
                for each in (*numbers, *found.texts):
                    self._numbers.pop(each, None)
                    self._texts.pop(each, None)
                self._numbers |= numbers
                self._texts |= found.texts
                self._is_changed = self._has_news = True
        except Exception as error:
            if self._note is None:
                raise
            self._note(f"summary {name}", error)

    def __getitem__(self, name: str) -> int | float | str:
        """Value set by hand, else the newest of a metric.

        Raises:
            KeyError: neither.
        """
        with self._lock:
            by_hand: Mapping[str, int | float | str] = {**self._numbers, **self._texts}
            return by_hand[name] if name in by_hand else self._metrics[name].last

    @property
    def metrics(self) -> dict[str, MetricStatistics]:
        """Statistics by name, as far as the I/O thread has seen the values: 50 ms late."""
        with self._lock:
            return {name: MetricStatistics(**vars(one)) for name, one in self._metrics.items()}

    @property
    def step(self) -> int:
        """The newest step; -1 before the first."""
        return self._step

    def fold(self, event: Scalars) -> None:
        """Take in the numbers of one `log`; they are made what JSON has."""
        values, step = event.values, event.step
        for name, value in values.items():
            if type(value) is not float:
                values[name] = as_number(value)
        with self._lock:
            for name, value in values.items():
                one = self._metrics.get(name)
                if one is None:
                    one = self._metrics[name] = MetricStatistics(step=step, last=value, count=0)
                    self._has_news = True
                one.add(step, value)
            self._step = step
            self._is_changed = True

    def take_due(self, now: float) -> Summary | None:
        """The event, where it is to be sent again; `now` is on the monotonic clock."""
        interval = SEND_SECONDS * (1 + len(self._metrics) / NAMES_PER_INTERVAL)
        wait = min(FIRST_SECONDS, interval) if self._has_news else interval
        if not self._is_changed or now - self._sent_at < wait:
            return None
        self._sent_at = now
        return self.take()

    def take(self) -> Summary:
        """The event of now."""
        with self._lock:
            self._is_changed = self._has_news = False
            metrics = {name: MetricStatistics(**vars(one)) for name, one in self._metrics.items()}
            return Summary(
                step=max(0, self._step),
                metrics=metrics,
                numbers=dict(self._numbers),
                texts=dict(self._texts),
            )

    def restore(self, journal: Path) -> None:
        """Go on where an earlier boot was: from its newest summary and the numbers after it."""
        after: list[Scalars] = []
        for line in lines_newest_first(journal):
            if b'"type":"scalar"' not in line[:128] and b'"type":"summary"' not in line[:128]:
                continue
            try:
                event = decode_line(line).data
            except WireError:
                continue
            if isinstance(event, Summary):
                self._metrics = dict(event.metrics)
                self._numbers, self._texts = dict(event.numbers), dict(event.texts)
                self._step = event.step if event.metrics else -1
                break
            after.append(event)
        for event in reversed(after):
            self.fold(event)
