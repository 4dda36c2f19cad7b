"""Reads the journals of the runs that are compared, a little at a time, and of live ones what comes in."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from esper_overwatch.overwatch_tui.model.curves import ComparedRun
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError, WireError
from esper_overwatch.protocol.journal.reader import JournalRange
from esper_overwatch.protocol.runs import RunInfo, find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

LETTERS = "abcdef"
"""Letters of the run that is watched and of the others."""
AGAIN_SECONDS = 5.0
"""Time after which a journal that was read to its end is read again."""


def _skip(_number: int, _error: WireError) -> None:
    """A damaged line is reported where its run is watched; here it is a hole."""


class JournalCurves:
    """Folds one journal into curves."""

    def __init__(self, run: ComparedRun, events: JournalEvents) -> None:
        self.run = run
        self._journal = events
        self._after: dict[str, int] = {}
        self._events: Iterator[Event] | None = None
        self._again_at = 0.0
        self.is_over = False
        """True once it can no longer be read: its folder was removed or renamed."""

    def step(self, seconds: float) -> bool:
        """Read for about `seconds`; returns True if something came.

        Raises:
            EsperError: it can no longer be read; further calls read nothing.
        """
        try:
            return self._read(seconds)
        except EsperError:
            self._events, self.is_over = None, True
            raise

    def _read(self, seconds: float) -> bool:
        if self.is_over:
            return False
        began = time.monotonic()
        if self._events is None:
            if began < self._again_at:
                return False
            wanted = JournalRange(after=dict(self._after))
            self._events = self._journal.read(wanted, on_bad=_skip)
        has_come = False
        for event in self._events:
            self._after[event.stream] = max(event.seq, self._after.get(event.stream, 0))
            self.run.fold(event)
            has_come = True
            if time.monotonic() - began > seconds:
                return True
        self._events, self._again_at = None, time.monotonic() + AGAIN_SECONDS
        return has_come

    def read_whole(self) -> None:
        """Read all that the journal has now.

        Raises:
            EsperError: it cannot be read.
        """
        self._read(inf)


@dataclass
class ComparedRuns:
    """The runs that `esper-tui a b` compares."""

    begin: int = 0
    """Begin of the run that is watched, microseconds."""
    others: list[JournalCurves] = field(default_factory=list)
    _notice: str = ""

    def step(self, seconds: float) -> bool:
        """Read for about `seconds`; returns True if something came."""
        has_come = False
        for other in self.others:
            try:
                has_come |= other.step(seconds / len(self.others))
            except EsperError as error:
                self._notice = f"{other.run.name} is no longer read: {error}"
        return has_come

    def take_notice(self) -> str:
        """Message about a run that can no longer be read; returned once."""
        notice, self._notice = self._notice, ""
        return notice


def read_compared(names: Sequence[str]) -> list[ComparedRun]:
    """The runs of these names, each read to its end.

    Raises:
        RunNotFound: one is not here.
        EsperError: too many, one twice, or one that cannot be read.
    """
    watched, compared = find_run(names[0]), open_compared(names[0], names[1:])
    first = ComparedRun(LETTERS[0], watched.name, compared.begin)
    readers = [JournalCurves(first, JournalEvents(watched.path / EVENTS_FILE)), *compared.others]
    for reader in readers:
        reader.read_whole()
    return [reader.run for reader in readers]


def open_compared(name: str | None, others: Sequence[str]) -> ComparedRuns:
    """Compare runs of this machine with the first; without `others` there is nothing to compare.

    Raises:
        RunNotFound: one is not here.
        EsperError: too many, or one twice.
    """
    if not others:
        return ComparedRuns()
    if len(others) >= len(LETTERS):
        raise EsperError(f"{len(others) + 1} runs: at most {len(LETTERS)} are compared")
    watched = find_run(name)
    compared, seen = ComparedRuns(_begin_of(watched)), {watched.id}
    for mark, other in zip(LETTERS[1:], others, strict=False):
        found = find_run(other)
        if found.id in seen:
            raise EsperError(f"run {found.name} is named twice: name the runs that are compared once each")
        seen.add(found.id)
        run = ComparedRun(mark, found.name, _begin_of(found))
        compared.others.append(JournalCurves(run, JournalEvents(found.path / EVENTS_FILE)))
    return compared


def _begin_of(run: RunInfo) -> int:
    """Begin of the run: its folder's time or its first event that is kept, the earlier one, microseconds."""
    first = next(JournalEvents(run.path / EVENTS_FILE).read(on_bad=_skip), None)
    return run.created if first is None else min(run.created, first.ts)
