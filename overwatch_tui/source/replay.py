"""A recorded run: its journal, played at its own pace or faster."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.client.items import Item, Reset
from esper_overwatch.protocol.codec.json_lines import LINE_PREFIX, Event
from esper_overwatch.protocol.errors import EsperError, WireError
from esper_overwatch.protocol.journal.reader import JournalRange, lines_newest_first
from esper_overwatch.protocol.messages.events import RunStarted
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.protocol.storage.lock import holder_of

from .feed import DRAIN_SECONDS
from .link_status import LinkStatus, Outcome

MAX_REPLAY_PAUSE = 10 * SECOND
"""Longest pause of a recording that is played, microseconds; longer ones are skipped."""


class ReplayFeed:
    """A run's journal, played at its own speed (1), faster, or all at once (infinity).

    Raises:
        EsperError: the file cannot be read, or holds no event.
    """

    is_caught_up = True

    def __init__(self, path: Path, speed: float) -> None:
        self._path = path
        self._outcome = Outcome()
        self.speed = speed
        self.is_paused = False
        self._bad = 0
        self._last_bad = ""
        self._events: Iterator[Event] = JournalEvents(path).read(on_bad=self._note_bad)
        self._next = next(self._events, None)
        if self._next is None:
            raise EsperError(f"{path}: no event in it; is it a run's events.jsonl?")
        self.clock = self._next.ts
        """Time of the recording, microseconds: what is not later has been played."""
        self.begin = self.clock
        """Time of the first event."""
        self._end = time_of(next(lines_newest_first(path), b"")) if math.isinf(speed) else 0
        self._wall = time.monotonic()
        self._count = 0
        self.boot: str | None = None
        self.run_id: str | None = None
        self.problem: EsperError | None = None
        """Why the rest of the recording cannot be read: it ends before."""

    def _read_next(self) -> Event | None:
        try:
            return next(self._events, None)
        except EsperError as error:  # a journal can vanish while it is played
            self.problem = error
            return None

    def _note_bad(self, number: int, error: WireError) -> None:
        self._bad += 1
        self._last_bad = f"line {number}: {error}"

    @property
    def is_over(self) -> bool:
        """True once everything has been played."""
        return self._next is None

    def drain(self) -> list[Item]:
        wall = time.monotonic()
        passed, self._wall = wall - self._wall, wall
        if self.is_paused:
            return []
        everything = math.isinf(self.speed)
        if not everything and self._next is not None:
            self.clock += int(passed * self.speed * SECOND)
        if self._next is not None and self._next.ts > self.clock + MAX_REPLAY_PAUSE:
            self.clock = self._next.ts
        items: list[Item] = []
        while self._next is not None and (everything or self._next.ts <= self.clock):
            items += self.take()
            if time.monotonic() - wall > DRAIN_SECONDS:
                break
        return items

    def peek(self) -> Event | None:
        """The next event; None at the end."""
        return self._next

    def take(self) -> list[Item]:
        """The next event, whatever the time; before it a `Reset` where a boot begins."""
        event, items = self._next, list[Item]()
        if event is None:
            return items
        started = event.data
        if isinstance(started, RunStarted) and started.boot != self.boot:
            self.boot, self.run_id = started.boot, started.run
            items.append(Reset(f"run {started.name}, boot {started.boot}"))
        self.clock = max(self.clock, event.ts)
        self._count += 1
        self._outcome.take(event)
        items.append(event)
        self._next = self._read_next()
        return items

    def rewind(self, state: State) -> None:
        """Go on after what a state was folded from.

        Raises:
            EsperError: the journal cannot be read any more; it goes on where it was.
        """
        bad = self._bad, self._last_bad
        self._bad, self._last_bad = 0, ""
        wanted = JournalRange(after=dict(state.numbers))
        events = JournalEvents(self._path).read(wanted, on_bad=self._note_bad)
        try:
            following = next(events, None)
        except EsperError:
            self._bad, self._last_bad = bad
            raise
        self._events, self._next, self.problem = events, following, None
        self._count, self.clock = state.position, state.ts
        self.boot, self.run_id = (None, None) if state.run is None else (state.run.boot, state.run.run)

    def now(self) -> int:
        return self.clock

    def _opening(self) -> str:
        """Share of the recording that has been read on the way to its end, where it was opened at the end."""
        if self.is_over or not math.isinf(self.speed):
            self._end = 0
        return f"{(self.clock - self.begin) / max(1, self._end - self.begin):.0%}" if self._end else ""

    def update_link(self, link: LinkStatus) -> None:
        link.state = "ended" if self.is_over else "replay"
        link.name = self._path.parent.name
        link.replay_speed = self.speed
        link.events, link.bad, link.last_bad = self._count, self._bad, self._last_bad
        link.is_replay, link.opening = True, self._opening()
        lock = self._path.parent / "lock"
        has_died = self.is_over and lock.exists() and holder_of(lock) is None
        self._outcome.update_link(link, is_over=self.is_over, has_died=has_died)

    def request(self, method: str, params: dict[str, Any]) -> str:
        raise EsperError(f"a recording accepts no commands: {method} {params}")

    def close(self) -> None:
        self._events = iter(())


def time_of(line: bytes) -> int:
    """Time of an event's line, microseconds; 0 where it has none."""
    head = LINE_PREFIX.match(line)
    return int(head[3]) if head is not None and head[3] is not None else 0


def journal_of(run: str) -> Path:
    """The journal meant by `--replay`: a file, a run's folder, or a run's name.

    Raises:
        RunNotFound: neither a file nor a run.
    """
    path = Path(run).expanduser()
    if path.is_dir() and (path / EVENTS_FILE).exists():
        return path / EVENTS_FILE
    if path.is_file():
        return path
    return find_run(run).path / EVENTS_FILE
