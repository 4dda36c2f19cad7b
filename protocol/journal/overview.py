"""A run in a few figures, from the tail of its journal: what a list of runs shows.

Bounded whatever the journal's length: the newest lines are looked at, up to a number of bytes, and of these
only the few that count are decoded.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, sqrt
from pathlib import Path
from statistics import StatisticsError, correlation, linear_regression, median
from typing import Any, NamedTuple

from msgspec import Struct

from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.messages import events as ev

from .line_files import HEAD_BYTES
from .reader import lines_newest_first
from .segments import OnDamage

TAIL_BYTES = 1024 * 1024
MAX_VALUES = 32
MAX_SCALARS = 256
"""Number of `scalar` events that are decoded for the course of a published run's number."""
MIN_RATE_VALUES = 5
RATE_ERRORS = 2.0
"""A slope of fewer standard errors is none."""
HOUR = 3_600_000_000
PREFERRED_METRICS = ("return", "ep_rew_mean", "reward", "episodic_return", "accuracy", "acc", "loss")
"""Last parts of the names by which the number that stands for a published run is chosen, the best first."""

_TYPE = re.compile(rb'"type":"([a-z_.]+)"')
_WANTED = frozenset(b"run.started run.stopped round.started round.finished epoch incident scalar".split())


class RunOverview(Struct, frozen=True):
    """Progress and results of a run; what the tail does not hold is None or empty."""

    ts: int
    """Time of the newest event, microseconds."""
    round: int = 0
    rounds: int = 0
    """Planned; 0 = not known."""
    epoch: int = 0
    step: int | None = None
    """Step of a published run."""
    accuracy: float | None = None
    """Mean validation accuracy of the newest epoch, 0 to 1."""
    signal: str = ""
    """Name of `values`: `return` for a training, else a number of the published run."""
    values: tuple[float, ...] = ()
    """Mean return of the newest rounds, or newest values of that number; the oldest first."""
    rate: float | None = None
    """Their change an hour: the slope of the straight line through the newest ones, by their median distance
    in time, so that a pause counts for nothing; 0 where it is below twice its standard error."""
    critical: int = 0
    """Incidents that were open at the end of the tail, by severity."""
    warning: int = 0
    exit_code: int | None = None
    """Set if the last boot ended in order."""
    error: str = ""
    done: int = 0
    """Rounds of a training that has trained all it was to; else 0."""
    stopped_by: str = ""
    """See `RunStopped.stopped_by`."""


def read_overview(
    path: Path, *, limit: int = TAIL_BYTES, on_damage: OnDamage = lambda _: None
) -> RunOverview | None:
    """The figures of a journal's run; None where there is no event.

    Args:
        path: of `events.jsonl`.
        limit: bytes of the tail that are looked at; its last line may go beyond.
        on_damage: called for what of it cannot be read.
    """
    tail = _Tail()
    for line in lines_newest_first(path, on_damage=on_damage):
        if limit <= 0 or tail.is_complete:
            break
        limit -= len(line) + 1
        tail.take(line)
    return tail.overview()


class _Point(NamedTuple):
    """A value and its time, microseconds."""

    ts: int
    value: float


@dataclass
class _Tail:
    """Findings of a walk from the newest event to older ones."""

    newest: Event | None = None
    rounds: int = 0
    step: int | None = None
    accuracy: float | None = None
    stopped: ev.RunStopped | None = None
    returns: list[_Point] = field(default_factory=list)
    numbers: dict[str, list[_Point]] = field(default_factory=dict)
    num_scalars: int = 0
    incidents: dict[str, ev.Incident] = field(default_factory=dict)
    _is_boot_over: bool = False
    """True once the beginning of the last boot was passed."""

    @property
    def is_complete(self) -> bool:
        return len(self.returns) >= MAX_VALUES or self.num_scalars >= MAX_SCALARS

    def take(self, line: bytes) -> None:
        """Look at the next older line."""
        found = _TYPE.search(line, 0, HEAD_BYTES)
        wanted = found is not None and found[1] in _WANTED
        if not wanted and self.newest is not None:
            return
        if wanted and found is not None and found[1] == b"epoch" and self.accuracy is not None:
            return
        try:
            event = decode_line(line)
        except WireError:
            return
        self.newest = self.newest or event
        self._fold(event.ts, event.data)

    def _fold(self, ts: int, data: Any) -> None:
        match data:
            case ev.RunStarted():
                self.rounds, self._is_boot_over = self.rounds or data.rounds, True
            case ev.RunStopped() if not self._is_boot_over and self.stopped is None:
                self.stopped = data
            case ev.RoundStarted():
                self.rounds = self.rounds or data.rounds
            case ev.RoundFinished() if isfinite(data.return_mean):
                self.returns.append(_Point(ts, data.return_mean))
            case ev.EpochFinished():
                known = [one for one in data.val_accuracy if one is not None and isfinite(one)]
                self.accuracy = sum(known) / len(known) if known else None
            case ev.Incident() if not self._is_boot_over:
                self.incidents.setdefault(data.id, data)
            case ev.Scalars():
                self._fold_scalars(ts, data)

    def _fold_scalars(self, ts: int, data: ev.Scalars) -> None:
        self.num_scalars += 1
        self.step = data.step if self.step is None else self.step
        for name, value in data.values.items():
            if isfinite(value):
                self.numbers.setdefault(name, []).append(_Point(ts, value))

    def overview(self) -> RunOverview | None:
        if self.newest is None:
            return None
        active = Counter(one.severity for one in self.incidents.values() if one.active)
        signal, points = "return" if self.returns else "", self.returns
        if not points and self.numbers:
            signal = choose_metric(list(self.numbers))
            points = self.numbers[signal]
        points = points[::-1]
        return RunOverview(
            ts=self.newest.ts,
            round=self.newest.ctx.round,
            rounds=self.rounds,
            epoch=self.newest.ctx.epoch,
            step=self.step,
            accuracy=self.accuracy,
            signal=signal,
            values=tuple(_thinned([point.value for point in points])),
            rate=_rate(points),
            critical=active["critical"],
            warning=active["warning"],
            exit_code=None if self.stopped is None else self.stopped.exit_code,
            error="" if self.stopped is None else self.stopped.error or "",
            done=0 if self.stopped is None else self.stopped.done,
            stopped_by="" if self.stopped is None else self.stopped.stopped_by,
        )


def choose_metric(names: list[str]) -> str:
    """The number that stands for a published run: a return or reward, an accuracy, a loss, else the first."""

    def rank(name: str) -> tuple[bool, int, int, str]:
        *groups, leaf = name.lower().split("/")
        fits = (i for i, word in enumerate(PREFERRED_METRICS) if leaf == word or leaf.endswith(f"_{word}"))
        is_one_of_many = any(group.isdecimal() for group in groups)
        return is_one_of_many, next(fits, len(PREFERRED_METRICS)), len(groups), name

    return min(names, key=rank)


def _thinned(values: list[float]) -> list[float]:
    """Means of at most `MAX_VALUES` equal parts."""
    if len(values) <= MAX_VALUES:
        return values
    bounds = [i * len(values) // MAX_VALUES for i in range(MAX_VALUES + 1)]
    return [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(bounds)]


def _rate(points: list[_Point]) -> float | None:
    """See `RunOverview.rate`; None of too few values, or where they cannot be computed with."""
    if len(points) < MIN_RATE_VALUES:
        return None
    pace = median(later.ts - earlier.ts for earlier, later in pairwise(points))
    values = [point.value for point in points]
    if pace <= 0:
        return None
    if min(values) == max(values):
        return 0.0
    try:
        fit = correlation(range(len(points)), values)
        rate = linear_regression(range(len(points)), values).slope * HOUR / pace
    except (StatisticsError, ArithmeticError, ValueError):
        return None
    is_noise = abs(fit) * sqrt(len(points) - 2) < RATE_ERRORS * sqrt(max(0.0, 1 - fit * fit))
    return 0.0 if is_noise else rate if isfinite(rate) else None
