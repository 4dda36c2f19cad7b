"""Moments of a run: which there are, and the state at one of them.

A state is folded from events in their order, so the state at a moment is what the events up to there fold to.
To fold all of them at each step would take minutes in a run of a day: keyframes, which are states at known
moments, shorten it. A keyframe has neither curves nor counts: those are cut from the newest.

A moment is named by the newest number of each stream, which is the same in whatever is read to reach it.
"""

from __future__ import annotations

import pickle
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Protocol

from esper_overwatch.protocol.client.items import Item, Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import EpochFinished, Incident

from .curves import Curves
from .incident_history import IncidentHistory
from .seed_stories import SeedStories
from .state import State
from .time_series import SECOND

MINUTE = 60 * SECOND
"""Keyframes lie between two minutes, where a bucket of the curves ends."""
KEYFRAME_EVENTS = 4096
"""Least number of events between two keyframes."""
NEAR_KEYFRAME_EVENTS = 512
"""Between those that are kept where the cursor has been last."""
MAX_KEYFRAMES, MAX_NEAR_KEYFRAMES = 128, 16
MAX_MARKS = 65_536
"""Epochs, and incidents, that can be stepped to: of a day with an epoch a second, in 2 MiB."""
KEYFRAME_LOG_ENTRIES = 200
"""Newest log entries that a keyframe keeps."""


@dataclass(frozen=True)
class Keyframe:
    """A state to fold on from."""

    state: State
    """State without curves, counts, stories and log."""
    curves_until: int
    """Values of the curves before this time belong to it."""
    log: bytes
    """The newest entries of the log, packed: nothing else would hold them any more."""


class Marks:
    """Numbers of the events of one kind, in ascending order.

    Args:
        stream: that of all of them.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._columns = tuple(array("q") for _ in range(4))
        self.numbers, self.times, self._rounds, self._epochs = self._columns

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, ts: int, clock: tuple[int, int]) -> None:
        """Enter the next one, where it is none of these; the oldest go where there are too many."""
        if self.numbers and number <= self.numbers[-1]:
            return
        if len(self) >= MAX_MARKS:
            self._drop(MAX_MARKS // 8)
        for column, value in zip(self._columns, (number, ts, *clock), strict=True):
            column.append(value)

    def _clock(self, at: int) -> tuple[int, int] | None:
        return (self._rounds[at], self._epochs[at]) if self.numbers else None

    @property
    def newest_clock(self) -> tuple[int, int] | None:
        """(round, epoch) of the newest."""
        return self._clock(-1)

    def find(self, round_: int, epoch: int) -> SeekTarget | None:
        """Moment right after an epoch; where a resumed boot repeated it, the newest. None = not known."""
        for i in reversed(range(len(self))):
            if self._rounds[i] == round_ and self._epochs[i] == epoch:
                return SeekTarget({self.stream: self.numbers[i]})
        return None

    def newest_at(self, number: int) -> int:
        """The newest one up to a number; the number itself where there is none."""
        at = bisect_right(self.numbers, number)
        return self.numbers[at - 1] if at else number

    def neighbour(self, number: int, by: int) -> SeekTarget | None:
        """Moment `by` of these after a number (negative: before); None beyond the ends."""
        at = (bisect_left if by < 0 else bisect_right)(self.numbers, number)
        at += by if by < 0 else by - 1
        return SeekTarget({self.stream: self.numbers[at]}) if 0 <= at < len(self) else None

    def drop_before(self, numbers: Mapping[str, int]) -> None:
        """Forget what can no longer be reached."""
        self._drop(bisect_left(self.numbers, numbers.get(self.stream, 0)))

    def put_before(self, older: Marks, border: Mapping[str, int], from_ts: float) -> None:
        """Enter those of older events since a time; none of these lies before the border."""
        last = border.get(self.stream, 0)
        begin, end = bisect_left(older.times, from_ts), bisect_right(older.numbers, last)
        if last in self.numbers[:1] and older._clock(end - 1) == self._clock(0):
            end -= 1  # the epoch at the border itself is known already
        begin = max(begin, end + len(self) - MAX_MARKS)
        for mine, theirs in zip(self._columns, older._columns, strict=True):
            mine[:0] = theirs[begin:end]

    def _drop(self, count: int) -> None:
        for column in self._columns:
            del column[:count]


class SeekTarget(NamedTuple):
    """A place to go to: the first of these conditions that is met; without any, the end."""

    numbers: Mapping[str, int] | None = None
    """The moment at which each of these streams has come to its number."""
    ts: int | None = None
    """The moment before the first event that is later."""
    until: Callable[[Event], bool] | None = None
    """The moment right after the first such event."""

    def is_reached(self, state: State) -> bool:
        """True if a state has come to the numbers."""
        known = state.numbers
        return self.numbers is not None and all(known.get(each, 0) >= n for each, n in self.numbers.items())

    def is_behind(self, numbers: Mapping[str, int], ts: int) -> bool:
        """True if a moment lies after it, so that it cannot be reached from there."""
        wanted = self.numbers or {}
        is_beyond = any(numbers.get(stream, 0) > number for stream, number in wanted.items())
        return is_beyond or (self.ts is not None and ts > self.ts)


class RunTimeline:
    """Takes note of what is folded, once and in order; finds the way back."""

    def __init__(self) -> None:
        self.keyframes: list[Keyframe] = []
        self._near: deque[Keyframe] = deque(maxlen=MAX_NEAR_KEYFRAMES)
        self._spacing = KEYFRAME_EVENTS
        self.epochs = Marks("metric")
        self.incidents = Marks("life")
        self.end = 0
        """Position up to which events are known."""
        self._newest = State()
        """The state that was folded furthest: what a keyframe lacks is cut from it."""
        self._border, self._newest_before = 0, State()
        """Position before which there is what was put before, and the state that it was folded to."""

    def fold(self, state: State, event: Event, *, is_joining: bool = False) -> None:
        """Fold an event, and note it where it is new; events of a snapshot (`is_joining`) are no marks."""
        is_new = state.position >= self.end
        if not is_joining:
            self._offer(state, event.ts, is_new=is_new)
        state.fold(event)
        if not is_new:
            return
        self.end, self._newest = state.position, state
        if is_joining:
            return
        data, clock = event.data, (event.ctx.round, event.ctx.epoch)
        if isinstance(data, EpochFinished):
            self.epochs.add(event.seq, event.ts, clock)
        elif is_trouble(event):
            self.incidents.add(event.seq, event.ts, clock)

    def add_keyframe(self, state: State) -> Keyframe:
        """Make this moment one that can be gone back to, as after a snapshot."""
        keyframe = self._keyframe(state, state.ts)
        self.keyframes.append(keyframe)
        clock = state.epoch_ctx.round, state.epoch_ctx.epoch
        if state.epoch is not None and self.epochs.newest_clock != clock:
            self.epochs.add(state.numbers.get(self.epochs.stream, 0), state.epoch_ts, clock)
        return keyframe

    def _offer(self, state: State, ts: int, *, is_new: bool) -> None:
        """Keep a keyframe where a minute ends and the last one is far enough."""
        if not self.keyframes:
            self.keyframes.append(self._keyframe(state, state.ts))
        if ts // MINUTE <= state.ts // MINUTE:
            return
        last = self.keyframe_before(SeekTarget(state.numbers))
        behind = state.position - (last.state.position if last is not None else 0)
        if is_new and behind >= self._spacing:
            self.keyframes.append(self._keyframe(state, ts // MINUTE * MINUTE))
            if len(self.keyframes) > MAX_KEYFRAMES:
                self._spacing *= 2
                del self.keyframes[1::2]
        elif not is_new and behind >= NEAR_KEYFRAME_EVENTS:
            self._near.append(self._keyframe(state, ts // MINUTE * MINUTE))

    def _keyframe(self, state: State, curves_until: int) -> Keyframe:
        newest = list(islice(reversed(state.log), KEYFRAME_LOG_ENTRIES))[::-1]
        bare = replace(
            state,
            curves=Curves(),
            log=deque(maxlen=state.log.maxlen),
            incident_history=IncidentHistory(),
            stories=SeedStories(),
        )
        return Keyframe(bare.frozen_copy(), curves_until, zlib.compress(pickle.dumps(newest), 1))

    def keyframe_before(self, target: SeekTarget) -> Keyframe | None:
        """The newest keyframe from which a target can be reached."""
        found = [
            each
            for each in (*self.keyframes, *self._near)
            if not target.is_behind(each.state.numbers, each.state.ts)
        ]
        return max(found, key=lambda each: each.state.position, default=None)

    def start(self, keyframe: Keyframe) -> State:
        state = keyframe.state.frozen_copy()
        newest = self._newest_before if state.position < self._border else self._newest
        state.curves = newest.curves.cut(keyframe.curves_until)
        state.incident_history = newest.incident_history.cut(state.ts)
        state.stories = newest.stories.cut(state.numbers, state.ctx.round)
        state.log.extend(pickle.loads(zlib.decompress(keyframe.log)))
        return state

    def put_before(self, older: RunTimeline, border: Keyframe, from_ts: float) -> None:
        """Make the moments of older events ones to go back to.

        Args:
            older: their timeline, folded to its end.
            border: where it ends.
            from_ts: moments before this time are not whole, microseconds.
        """
        self.begin_at(border)
        self._border, self._newest_before = border.state.position, older._newest
        self.keyframes[:0] = [each for each in older.keyframes if each.state.position < self._border]
        for mine, theirs in ((self.epochs, older.epochs), (self.incidents, older.incidents)):
            mine.put_before(theirs, border.state.numbers, from_ts)

    def begin_at(self, keyframe: Keyframe) -> None:
        """Forget all moments before one."""
        first = keyframe.state.position
        self.keyframes = [keyframe, *(each for each in self.keyframes if each.state.position > first)]
        near = [each for each in self._near if each.state.position >= first]
        self._near = deque(near, maxlen=MAX_NEAR_KEYFRAMES)
        self._border, self._newest_before = 0, State()
        for marks in (self.epochs, self.incidents):
            marks.drop_before(keyframe.state.numbers)


def is_trouble(event: Event) -> bool:
    """True for events that the keys of incidents step to."""
    data = event.data
    return isinstance(data, Incident) and data.change in ("began", "worse") and data.severity != "info"


class EventReader(Protocol):
    """Events one after the other, the next one known before it is taken."""

    def peek(self) -> Event | None:
        """The next event; None at the end."""

    def take(self) -> list[Item]:
        """The next event, and what comes before it."""


class Seek:
    """Folds up to a target, in slices of time."""

    def __init__(self, timeline: RunTimeline, state: State, reader: EventReader, target: SeekTarget) -> None:
        self.state = state
        self.target = target
        self._timeline = timeline
        self._reader = reader
        self._begin = dict(state.numbers), state.ts
        self.is_met = False
        """True if the target was reached, False at the end of all events."""

    def step(self, seconds: float) -> bool:
        """Go on for about `seconds`; True once it is over."""
        end = time.monotonic() + seconds
        target = self.target
        while True:
            event = self._reader.peek()
            self.is_met = target.is_reached(self.state) or (
                target.ts is not None and event is not None and event.ts > target.ts
            )
            if event is None or self.is_met:
                return True
            for item in self._reader.take():
                if isinstance(item, Reset):
                    self.state = self.state.reset_copy(item.reason, now=self.state.ts)
                elif isinstance(item, Event):
                    self._timeline.fold(self.state, item)
            if target.until is not None and target.until(event):
                self.is_met = True
                return True
            if time.monotonic() > end:
                return False

    @property
    def progress(self) -> str:
        """Share of the way that is done, such as `43%`; the number of events where its end is not known."""
        state, target, (numbers, ts) = self.state, self.target, self._begin
        if target.numbers is not None:
            done = sum(state.numbers.get(each, 0) - numbers.get(each, 0) for each in target.numbers)
            all_ = sum(number - numbers.get(each, 0) for each, number in target.numbers.items())
        elif target.ts is not None and ts:
            done, all_ = state.ts - ts, target.ts - ts
        else:
            return f"{state.position} events"
        return f"{min(1.0, done / all_) if all_ > 0 else 1.0:.0%}"
