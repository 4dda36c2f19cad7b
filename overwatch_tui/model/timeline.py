"""Moments of a run: which there are, and the state at one of them.

A state is folded from events in their order, so the state at a moment is what the events up to there fold to.
To fold all of them at each step would take minutes in a run of a day: keyframes, which are states at known
moments, shorten it. A keyframe has neither curves nor counts: those are cut from the newest.

A moment is named by the newest number of each stream, which is the same in whatever is read to reach it.
"""

from __future__ import annotations

import pickle
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import EpochFinished, Incident

from .curves import Curves
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
            self.drop(MAX_MARKS // 8)
        for column, value in zip(self._columns, (number, ts, *clock), strict=True):
            column.append(value)

    def clock(self, at: int) -> tuple[int, int] | None:
        """(round, epoch) of the first (0) or the newest (-1)."""
        return (self._rounds[at], self._epochs[at]) if self.numbers else None

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

    def drop(self, count: int, *, newest: bool = False) -> None:
        """Forget the oldest, or the newest."""
        for column in self._columns:
            del column[-count if newest else 0 : None if newest else count]


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

    @property
    def begin(self) -> int:
        """Position of the first keyframe."""
        return self.keyframes[0].state.position if self.keyframes else 0

    def marks(self, what: str) -> Marks:
        return self.epochs if what == "epoch" else self.incidents

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
        if state.epoch is not None and self.epochs.clock(-1) != clock:
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
        newest = self._newest
        state.curves = newest.curves.cut(keyframe.curves_until)
        state.stories = newest.stories.cut(state.numbers, state.ctx.round)
        state.log.extend(pickle.loads(zlib.decompress(keyframe.log)))
        return state

    def begin_at(self, keyframe: Keyframe) -> None:
        """Forget all moments before one; not the last marks there."""
        first = keyframe.state.position
        self.keyframes = [keyframe, *(each for each in self.keyframes if each.state.position > first)]
        near = [each for each in self._near if each.state.position >= first]
        self._near = deque(near, maxlen=MAX_NEAR_KEYFRAMES)
        for marks in (self.epochs, self.incidents):
            marks.drop(bisect_right(marks.numbers, keyframe.state.numbers.get(marks.stream, 0)) - 1)

    def end_before(self, newer: RunTimeline, from_ts: float) -> None:
        """Forget the epoch that another begins with, and marks from before a time, microseconds."""
        if self.epochs.clock(-1) == newer.epochs.clock(0):
            self.epochs.drop(1, newest=True)
        for marks in (self.epochs, self.incidents):
            marks.drop(bisect_left(marks.times, from_ts))


def is_trouble(event: Event) -> bool:
    """True for events that the keys of incidents step to."""
    data = event.data
    return isinstance(data, Incident) and data.change in ("began", "worse") and data.severity != "info"
