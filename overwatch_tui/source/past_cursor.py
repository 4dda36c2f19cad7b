"""Moments from before a terminal joined a live run: a recording, read up to the joining, then sought."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from esper_overwatch.overwatch_tui.model.timeline import Marks, SeekTarget
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.events import RunStarted

from .cursor import Moment, RecordedCursor
from .past import Past

Find = Callable[["PastCursor"], SeekTarget | None]


@dataclass
class _Search:
    find: Find
    otherwise: Callable[[], str]
    is_back: bool
    since: tuple[int, int] | None
    first_epoch: int


class PastCursor:
    """A place in the past of a live run.

    Args:
        border: time of the newest event that was known when joining, microseconds.
        run: how the boot began that was joined, where the recording does not say it.
    """

    def __init__(self, source: Past, border: int, run: RunStarted | None) -> None:
        self.border = border
        self.notice = ""
        """Message of a search that found nothing."""
        self._source, self._run = source, run
        self._cursor: RecordedCursor | None = None
        self._first_ts = 0
        self._is_read = False
        """True once the recording has been read up to the border: all its marks are known."""
        self._is_going = False
        self._search: _Search | None = None

    def search(
        self,
        find: Find,
        otherwise: Callable[[], str],
        *,
        is_back: bool,
        since: tuple[int, int] | None,
        first_epoch: int,
    ) -> None:
        """Have `step` go to a moment.

        Args:
            find: says which, with the methods below; called when the recording has been read.
            otherwise: called where it finds none; gives a message.
            is_back: ask for more of the past before that.
            since: times of the epoch and of the moment that are shown; None = they are after the border.
            first_epoch: the time of the first epoch that is not of the past.
        """
        self._search = _Search(find, otherwise, is_back, since, first_epoch)
        self._is_going = False

    def step_by(self, what: str, by: int) -> tuple[SeekTarget | None, int]:
        """(the moment `by` `epoch`s or `incident`s on or None, the possible steps); negative is back."""
        assert self._search is not None
        marks, here = self._marks(what), self._here(what)
        if by < 0:
            at, last = bisect_left(marks.times, here), bisect_left(marks.times, self._source.from_ts)
            steps = max(by, last - at)
            return SeekTarget(position=marks.positions[at + steps]) if steps < 0 else None, steps
        at, last = bisect_right(marks.times, here), len(marks)
        if what == "epoch":
            last = bisect_left(marks.times, self._search.first_epoch)
        steps = min(by, last - at)
        return SeekTarget(position=marks.positions[at + steps - 1]) if steps > 0 else None, steps

    def to_time(self, ts: int) -> SeekTarget | None:
        """A time, microseconds; 0 is the oldest one that can be shown."""
        oldest = max(self._first_ts, self._source.from_ts)
        if ts >= oldest:
            return SeekTarget(ts=int(ts))
        return SeekTarget(ts=int(oldest)) if ts == 0 and self._source.is_spent else None

    def to_clock(self, clock: tuple[int, int]) -> SeekTarget | None:
        """Right after a (round, epoch)."""
        assert self._cursor is not None
        timeline = self._cursor.timeline
        position = timeline.clock_position(*clock)
        if position is None:
            return None
        at = bisect_left(timeline.epochs.positions, position)
        return SeekTarget(position=position) if timeline.epochs.times[at] >= self._source.from_ts else None

    def _marks(self, what: str) -> Marks:
        assert self._cursor is not None
        timeline = self._cursor.timeline
        return timeline.epochs if what == "epoch" else timeline.incidents

    def _here(self, what: str) -> int:
        assert self._search is not None
        if self._search.since is not None:
            return self._search.since[what != "epoch"]
        return self._search.first_epoch if what == "epoch" else self.border + 1

    @property
    def begins(self) -> str:
        """Why there is nothing older."""
        return self._source.begins

    @property
    def is_seeking(self) -> bool:
        """True while it is on its way to another moment."""
        return self._search is not None

    @property
    def progress(self) -> str:
        """Progress on its way."""
        return self._source.progress if self._cursor is None else self._cursor.progress

    @property
    def numbers(self) -> dict[str, int]:
        """The newest number of each stream at the moment that is shown."""
        return {} if self._cursor is None else self._cursor.numbers

    def stop(self) -> None:
        """Go nowhere; what has been read is kept."""
        self._search, self._is_going = None, False

    def step(self, seconds: float) -> Moment | None:
        """Go on for about `seconds`; returns the moment on arrival."""
        try:
            return self._advance(seconds)
        except EsperError as error:
            self.notice = str(error)
            self.stop()
            if not self._is_read:
                self._close_recording()  # another search reads it from its beginning
            return None

    def _advance(self, seconds: float) -> Moment | None:
        if self._cursor is None:
            if not self._source.step():
                return None
            feed = self._source.open()
            self._first_ts = feed.clock
            self._cursor = RecordedCursor(feed)
            first = feed.peek()
            if self._run is not None and not isinstance(first and first.data, RunStarted):
                self._cursor.begin_with(self._run)
            self._go(SeekTarget(ts=self.border))
        if self._is_read and not self._is_going:
            self._look()
            return None
        state = self._cursor.step(seconds)
        if state is None:
            return None
        if self._cursor.problem is not None:
            raise self._cursor.problem
        if not self._is_read:
            self._is_read = True
            return None
        self.stop()
        return Moment(state.frozen_copy(), self._cursor.now, self._cursor.position)

    def _go(self, target: SeekTarget) -> None:
        assert self._cursor is not None
        refusal = self._cursor.go(target)
        if refusal:
            raise EsperError(refusal)

    def _look(self) -> None:
        search = self._search
        assert search is not None
        assert self._cursor is not None
        target = search.find(self)
        if target is not None:
            self._go(target)
            self._is_going = True
        elif search.is_back and self._source.ask_more():
            self._close_recording()
        else:
            self.stop()
            self.notice = search.otherwise()

    def _close_recording(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self._cursor, self._is_read = None, False

    def close(self) -> None:
        """Close files, remove what was fetched."""
        self.stop()
        self._close_recording()
        self._source.close()
