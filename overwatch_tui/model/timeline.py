"""Moments of a run: which there are, and the state at one of them.

A state is folded from events in their order, so the state at a moment is what the events up to there fold to.
To fold all of them at each step would take minutes in a run of a day: keyframes, which are states at known
positions, shorten it. A keyframe has neither curves nor counts: those are cut from the newest.
"""

from __future__ import annotations

import pickle
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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


@dataclass
class Folding:
    """A state and how far it has been folded."""

    state: State = field(default_factory=State)
    position: int = 0
    """Number of events it was folded from."""
    ts: int = 0
    """The newest of them, microseconds."""

    def fold(self, event: Event) -> None:
        self.state.fold(event)
        self.position += 1
        self.ts = max(self.ts, event.ts)


@dataclass(frozen=True)
class Keyframe:
    """A state to fold on from."""

    position: int
    ts: int
    curves_until: int
    """Values of the curves before this time belong to it."""
    state: State
    """State without curves, counts, stories and log."""
    log: bytes
    """The newest entries of the log, packed: nothing else would hold them any more."""
    newest: Folding = field(repr=False)
    """The state that was folded furthest: what this one lacks is cut from it."""


class Marks:
    """Positions right after the events of one kind, in ascending order."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.times = array("q")
        self._rounds = array("q")
        self._epochs = array("q")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, position: int, ts: int, clock: tuple[int, int]) -> None:
        """Enter the next one; the oldest are forgotten where there are too many."""
        if len(self) >= MAX_MARKS:
            self._drop(MAX_MARKS // 8)
        self.positions.append(position)
        self.times.append(ts)
        self._rounds.append(clock[0])
        self._epochs.append(clock[1])

    @property
    def newest_clock(self) -> tuple[int, int]:
        """(round, epoch) of the newest; there has to be one."""
        return self._rounds[-1], self._epochs[-1]

    def find(self, round_: int, epoch: int) -> int | None:
        """Position of the newest one of a round and an epoch; None = not known."""
        for i in reversed(range(len(self))):
            if self._rounds[i] == round_ and self._epochs[i] == epoch:
                return self.positions[i]
        return None

    def drop_before(self, position: int) -> None:
        """Forget what can no longer be reached."""
        self._drop(bisect_left(self.positions, position))

    def put_before(self, older: Marks, by: int, border: int, from_ts: float) -> None:
        """Enter those since a time of the events before a position, in place of others before it.

        Args:
            by: what their positions are more here.
        """
        self.drop_before(border)
        begin, end = bisect_left(older.times, from_ts), len(older)
        if border in self.positions[:1] and end and older.newest_clock == (self._rounds[0], self._epochs[0]):
            end -= 1  # the epoch at the border itself is known already
        begin = max(begin, end + len(self) - MAX_MARKS)
        self.positions[:0] = array("q", [each + by for each in older.positions[begin:end]])
        for mine, theirs in (
            (self.times, older.times),
            (self._rounds, older._rounds),
            (self._epochs, older._epochs),
        ):
            mine[:0] = theirs[begin:end]

    def _drop(self, count: int) -> None:
        for column in (self.positions, self.times, self._rounds, self._epochs):
            del column[:count]


class SeekTarget(NamedTuple):
    """A place to go to: the first of these conditions that is met; without any, the end."""

    position: int | None = None
    ts: int | None = None
    """The moment before the first event that is later."""
    until: Callable[[Event], bool] | None = None
    """The moment right after the first such event."""


class RunTimeline:
    """Takes note of what is folded, once and in order; finds the way back."""

    def __init__(self) -> None:
        self.keyframes: list[Keyframe] = []
        self._older: list[Keyframe] = []
        """Of what was put before these; positions before the first of these are theirs."""
        self._near: deque[Keyframe] = deque(maxlen=MAX_NEAR_KEYFRAMES)
        self._spacing = KEYFRAME_EVENTS
        self.epochs = Marks()
        self.incidents = Marks()
        self.end = 0
        """Position up to which events are known."""
        self._first = 0
        """Position after which they are held."""
        self._newest = Folding()

    def fold(self, folding: Folding, event: Event, *, is_joining: bool = False) -> None:
        """Fold an event, and note it where it is new; events of a snapshot (`is_joining`) are no marks."""
        is_new = folding.position >= self.end
        if not is_joining:
            self._offer(folding, event.ts, is_new=is_new)
        folding.fold(event)
        if not is_new:
            return
        self.end = folding.position
        self._newest.state = folding.state
        if is_joining:
            return
        data, clock = event.data, (event.ctx.round, event.ctx.epoch)
        if isinstance(data, EpochFinished):
            self.epochs.add(folding.position, event.ts, clock)
        elif is_trouble(event):
            self.incidents.add(folding.position, event.ts, clock)

    def add_keyframe(self, folding: Folding) -> None:
        """Make this moment one that can be gone back to, as after a snapshot."""
        self.keyframes.append(self._keyframe(folding, folding.ts))
        state = folding.state
        if state.epoch is not None:
            clock = state.epoch_ctx.round, state.epoch_ctx.epoch
            self.epochs.add(folding.position, state.epoch_ts, clock)

    def _offer(self, folding: Folding, ts: int, *, is_new: bool) -> None:
        """Keep a keyframe where a minute ends and the last one is far enough."""
        if not self.keyframes:
            self.keyframes.append(self._keyframe(folding, folding.ts))
        if ts // MINUTE <= folding.ts // MINUTE:
            return
        last = self.keyframe_before(position=folding.position)
        behind = folding.position - (last.position if last is not None else 0)
        # Where few events are held, because they are large, some keyframes have to lie among them.
        spacing = min(self._spacing, (self.end - self._first) // 4) if self._first else self._spacing
        if is_new and behind >= spacing:
            self.keyframes.append(self._keyframe(folding, ts // MINUTE * MINUTE))
            if len(self.keyframes) > MAX_KEYFRAMES:
                self._spacing *= 2
                del self.keyframes[1::2]
        elif not is_new and behind >= NEAR_KEYFRAME_EVENTS:
            self._near.append(self._keyframe(folding, ts // MINUTE * MINUTE))

    def _keyframe(self, folding: Folding, curves_until: int) -> Keyframe:
        state = folding.state
        newest = list(islice(reversed(state.log), KEYFRAME_LOG_ENTRIES))[::-1]
        bare = replace(
            state,
            curves=Curves(),
            log=deque(maxlen=state.log.maxlen),
            incident_history=IncidentHistory(),
            stories=SeedStories(),
        )
        is_older = self._older and folding.position < self.keyframes[0].position
        return Keyframe(
            folding.position,
            folding.ts,
            curves_until,
            bare.frozen_copy(),
            zlib.compress(pickle.dumps(newest), 1),
            self._older[0].newest if is_older else self._newest,
        )

    def keyframe_before(self, *, position: int | None = None, ts: int | None = None) -> Keyframe | None:
        """The newest keyframe at or before a position, or whose events are not later than a time."""
        found = [
            each
            for each in (*self._older, *self.keyframes, *self._near)
            if (position is None or each.position <= position) and (ts is None or each.ts <= ts)
        ]
        return max(found, key=lambda each: each.position, default=None)

    def start(self, keyframe: Keyframe) -> Folding:
        state = keyframe.state.frozen_copy()
        newest = keyframe.newest.state
        state.curves = newest.curves.cut(keyframe.curves_until)
        state.incident_history = newest.incident_history.cut(keyframe.ts)
        state.stories = newest.stories.cut(state.numbers, state.ctx.round)
        state.log.extend(pickle.loads(zlib.decompress(keyframe.log)))
        return Folding(state, keyframe.position, keyframe.ts)

    def put_before(self, older: RunTimeline, from_ts: float) -> None:
        """Make the moments of older events, which end where the first keyframe is, ones to go back to.

        Args:
            older: their timeline, folded to its end.
            from_ts: moments before this time are not whole, microseconds.
        """
        begin = self.keyframes[0].position
        by = begin - older.end
        self._older = [replace(each, position=each.position + by) for each in older.keyframes]
        self._near = deque((each for each in self._near if each.position >= begin), MAX_NEAR_KEYFRAMES)
        for mine, theirs in ((self.epochs, older.epochs), (self.incidents, older.incidents)):
            mine.put_before(theirs, by, begin, from_ts)

    def drop_before(self, position: int) -> None:
        """Forget moments whose events are no longer held, and those that no keyframe lies before."""
        if position == self._first:
            return
        self._first = position
        near = [each for each in self._near if each.position >= position]
        self._near = deque(near, maxlen=MAX_NEAR_KEYFRAMES)
        if self.keyframes and self.keyframes[0].position < position:
            self.keyframes, self._older = [each for each in self.keyframes if each.position >= position], []
            first = self.keyframes[0].position if self.keyframes else self.end + 1
            self.epochs.drop_before(first)
            self.incidents.drop_before(first)

    def neighbour(self, marks: Marks, position: int, by: int) -> int | None:
        """Position of the mark `by` marks after a position (negative: before); None beyond the ends."""
        at = (bisect_left if by < 0 else bisect_right)(marks.positions, position)
        at += by if by < 0 else by - 1
        return marks.positions[at] if 0 <= at < len(marks) else None

    def epoch_at(self, position: int) -> int:
        """Position of the epoch that is the newest one at a position."""
        at = bisect_right(self.epochs.positions, position)
        return self.epochs.positions[at - 1] if at else position

    def clock_position(self, round_: int, epoch: int) -> int | None:
        """Position right after an epoch; where a resumed boot repeated it, the newest. None = not known."""
        return self.epochs.find(round_, epoch)


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

    def __init__(
        self, timeline: RunTimeline, folding: Folding, reader: EventReader, target: SeekTarget
    ) -> None:
        self.folding = folding
        self.target = target
        self._timeline = timeline
        self._reader = reader
        self._begin = folding.position, folding.ts
        self.is_met = False
        """True if the target was reached, False at the end of all events."""

    def step(self, seconds: float) -> bool:
        """Go on for about `seconds`; True once it is over."""
        end = time.monotonic() + seconds
        target, folding = self.target, self.folding
        while True:
            event = self._reader.peek()
            self.is_met = (target.position is not None and folding.position >= target.position) or (
                target.ts is not None and event is not None and event.ts > target.ts
            )
            if event is None or self.is_met:
                return True
            for item in self._reader.take():
                if isinstance(item, Reset):
                    folding.state = folding.state.reset_copy(item.reason, now=folding.state.ts)
                elif isinstance(item, Event):
                    self._timeline.fold(folding, item)
            if target.until is not None and target.until(event):
                self.is_met = True
                return True
            if time.monotonic() > end:
                return False

    @property
    def progress(self) -> str:
        """Share of the way that is done, such as `43%`; the number of events where its end is not known."""
        folding, target = self.folding, self.target
        if target.position is not None:
            done, all_ = folding.position - self._begin[0], target.position - self._begin[0]
        elif target.ts is not None and self._begin[1]:
            done, all_ = folding.ts - self._begin[1], target.ts - self._begin[1]
        else:
            return f"{folding.position} events"
        return f"{min(1.0, done / all_) if all_ > 0 else 1.0:.0%}"
