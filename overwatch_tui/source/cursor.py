"""The time cursor: the moment that every view shows, in a live run and in a recorded one.

A live run is folded on while the cursor stands in its past: the moment is a state of its own. In a recording
the cursor is where the recording has been played to: going back folds it again from a keyframe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from overwatch_tui.model.event_memory import EventMemory
from overwatch_tui.model.state import State
from overwatch_tui.model.time_target import TimeTarget
from overwatch_tui.model.timeline import Folding, Marks, RunTimeline, Seek, SeekTarget, is_trouble
from protocol.client.items import Item, Reset
from protocol.codec.json_lines import Event
from protocol.messages.events import EpochFinished, RunStarted
from protocol.messages.thresholds import Threshold

from .replay import ReplayFeed

SEEK_SECONDS = 0.05
"""So long the screen may wait for the cursor, thirty times a second."""
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, math.inf)


class Moment(NamedTuple):
    """A state of the run, and when it was."""

    state: State
    ts: int
    """Microseconds."""
    position: int
    """How many events it was folded from."""


class Cursor:
    """What a cursor of either kind does; every move gives a message for the operator, or an empty one."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.moment: Moment | None = None
        """What is shown instead of the newest state."""
        self._folding = Folding()
        self._seek: Seek | None = None

    @property
    def is_seeking(self) -> bool:
        """Whether it is on its way."""
        return self._seek is not None

    @property
    def is_held(self) -> bool:
        """Whether what is shown stands still."""
        return self.moment is not None

    @property
    def progress(self) -> str:
        """How far it is on its way: `43%`; empty where it is not."""
        if self._seek is None:
            return ""
        share = self._seek.progress
        return f"{self._seek.folding.position} events" if share is None else f"{share:.0%}"

    @property
    def position(self) -> int:
        """Of what is shown."""
        return self._folding.position if self.moment is None else self.moment.position

    @property
    def num_after(self) -> int:
        """Events that are known and not shown."""
        return self.timeline.end - self.position

    def fold(self, state: State, event: Event) -> None:
        """Fold an event into the newest state."""
        self._folding.state = state
        self.timeline.fold(self._folding, event)

    def step_epochs(self, by: int) -> str:
        """Go to the epoch before (-1) or after."""
        return self._step(self.timeline.epochs, by, "epoch")

    def step_anomalies(self, by: int) -> str:
        """Go to where an anomaly was raised, the one before (-1) or after."""
        return self._step(self.timeline.anomalies, by, "anomaly")

    def _step(self, marks: Marks, by: int, what: str) -> str:
        here = self.timeline.epoch_at(self.position) if marks is self.timeline.epochs else self.position
        position = self.timeline.neighbour(marks, here, by)
        if position is not None:
            return self._go(SeekTarget(position=position))
        if by < 0:
            return f"no {what} before this moment{self._since()}"
        return self._step_beyond(what)

    def _step_beyond(self, what: str) -> str:
        raise NotImplementedError

    def _since(self) -> str:
        return ""

    def _go(self, target: SeekTarget) -> str:
        raise NotImplementedError


class LiveCursor(Cursor):
    """Over the events that have come since the terminal joined."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = EventMemory()
        self._is_joining = True

    def rejoin(self, *, is_new_run: bool) -> None:
        """A snapshot follows: of the same run or of another."""
        self._is_joining = True
        if is_new_run:
            self.timeline, self._folding, self.memory = RunTimeline(), Folding(), EventMemory()
            self._seek = self.moment = None

    def caught_up(self, state: State) -> None:
        """All of the snapshot has been folded: from here on there are moments to go back to."""
        if self._is_joining and self._folding.position:
            self._is_joining = False
            self._folding.state = state
            self.timeline.add_keyframe(self._folding)

    def fold(self, state: State, event: Event) -> None:
        self._folding.state = state
        self.timeline.fold(self._folding, event, is_joining=self._is_joining)
        self.memory.append(event)
        self.timeline.drop_before(self.memory.first)

    def hold(self, state: State, now: int) -> None:
        """Stand still at this moment while the run goes on; called again, back to it."""
        if self.moment is not None:
            self.to_end()
        else:
            self.moment = Moment(state.frozen_copy(), now, self._folding.position)

    def to_end(self) -> str:
        """Show the run as it is now."""
        self._seek = self.moment = None
        return ""

    def go_to(self, target: TimeTarget) -> str:
        """Go to a moment."""
        if target.is_end:
            return self.to_end()
        if target.clock is not None:
            position = self.timeline.clock_position(*target.clock)
            if position is None:
                return f"round {target.clock[0]} epoch {target.clock[1]} is not held{self._since()}"
            return self._go(SeekTarget(position=position))
        assert target.ts is not None
        if target.ts >= self._folding.ts:
            return self.to_end()
        return self._go(SeekTarget(ts=target.ts))

    def change_speed(self, by: int) -> str:  # noqa: ARG002
        """A live run has no speed."""
        return "a live run has one speed; recordings have speeds: esper-tui --replay NAME"

    def _go(self, target: SeekTarget) -> str:
        keyframe = self.timeline.keyframe_before(position=target.position, ts=target.ts)
        if keyframe is None:
            return f"that moment is not held{self._since()}"
        reader = _MemoryReader(self.memory.read(keyframe.position))
        self._seek = Seek(self.timeline, self.timeline.start(keyframe), reader, target)
        return ""

    def _since(self) -> str:
        return ": joined later; --replay shows the whole run"

    def _step_beyond(self, what: str) -> str:
        if self.moment is None:
            return f"no {what} after this moment: this is live"
        return self.to_end()

    def step(self, seconds: float) -> None:
        """Go on towards a moment."""
        if self._seek is None or not self._seek.step(seconds):
            return
        found, target = self._seek.folding, self._seek.target
        self.moment = Moment(found.state, target.ts or found.ts, found.position)
        self._seek = None


class _MemoryReader:
    """An iterator whose next event can be looked at."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events
        self._next = next(events, None)

    def peek(self) -> Event | None:
        return self._next

    def take(self) -> list[Item]:
        event, self._next = self._next, next(self._events, None)
        return [] if event is None else [event]


class RecordedCursor(Cursor):
    """Where a recording has been played to.

    Args:
        feed: plays it.
    """

    def __init__(self, feed: ReplayFeed) -> None:
        super().__init__()
        self._feed = feed

    @property
    def is_held(self) -> bool:
        return self._feed.is_paused or self.moment is not None

    def hold(self, state: State, now: int) -> None:  # noqa: ARG002
        """Pause, or play on; on the way somewhere, stop where it has come to."""
        if self._seek is not None:
            self._seek.target = SeekTarget(position=self._seek.folding.position)
        else:
            self._feed.is_paused = not self._feed.is_paused

    def to_end(self) -> str:
        """Go to the end of the recording."""
        return self._go(SeekTarget())

    def go_to(self, target: TimeTarget) -> str:
        """Go to a moment, which may lie behind what has been played."""
        if target.is_end:
            return self.to_end()
        if target.clock is None:
            return self._go(SeekTarget(ts=target.ts))
        position = self.timeline.clock_position(*target.clock)
        if position is not None:
            return self._go(SeekTarget(position=position))
        wanted = target.clock
        if self.timeline.epochs and self.timeline.epochs.clocks[-1] > wanted:
            return f"round {wanted[0]} epoch {wanted[1]} is not in the recording"

        def reached(event: Event) -> bool:
            return isinstance(event.data, EpochFinished) and (event.ctx.round, event.ctx.epoch) >= wanted

        return self._go(SeekTarget(until=reached))

    def change_speed(self, by: int) -> str:
        """Play faster (+1) or slower."""
        feed = self._feed
        slower = [each for each in SPEEDS if each < feed.speed]
        faster = [each for each in SPEEDS if each > feed.speed]
        if by < 0 and slower:
            feed.speed = slower[-1]
        elif by > 0 and faster:
            feed.speed = faster[0]
        return f"speed {speed_name(feed.speed)}"

    def _go(self, target: SeekTarget) -> str:
        feed, present = self._feed, self._folding
        if self._seek is not None:
            present = self._seek.folding
        else:
            self.moment = Moment(present.state.frozen_copy(), feed.now(), present.position)
        feed.is_paused = True
        is_back = (target.position is not None and target.position < present.position) or (
            target.ts is not None and target.ts < present.ts
        )
        keyframe = None
        if target.until is None:
            keyframe = self.timeline.keyframe_before(position=target.position, ts=target.ts)
        if keyframe is None and is_back:
            keyframe = self.timeline.keyframes[0]
        if keyframe is not None and (is_back or keyframe.position > present.position):
            present = self.timeline.start(keyframe)
            run: RunStarted | None = present.state.run
            feed.rewind(keyframe.numbers, position=keyframe.position, ts=keyframe.ts, run=run)
        self._seek = Seek(self.timeline, present, feed, target, self._rejoined)
        return ""

    def _rejoined(self, state: State, reset: Reset) -> State:
        """A state for the next boot of the recording."""
        if state.run is not None:
            state.commands.mark_daemon_lost("the daemon restarted before it was executed")
        fresh = state.reset_copy(reset.reason, now=state.ts)
        if self._feed.thresholds:
            fresh.thresholds = msgspec.convert(self._feed.thresholds, dict[str, Threshold])
        return fresh

    def _step_beyond(self, what: str) -> str:
        stop = is_trouble if what == "anomaly" else _is_epoch
        return self._go(SeekTarget(until=stop))

    def step(self, seconds: float) -> State | None:
        """Go on towards a moment; gives the state at it."""
        if self._seek is None or not self._seek.step(seconds):
            return None
        seek, self._seek, self.moment = self._seek, None, None
        self._folding = seek.folding
        self._feed.clock = max(seek.folding.ts, (seek.target.ts or 0) if seek.is_met else 0)
        return seek.folding.state


def _is_epoch(event: Event) -> bool:
    return isinstance(event.data, EpochFinished)


def speed_name(speed: float) -> str:
    """`10` or `max`."""
    return "max" if math.isinf(speed) else f"{speed:g}"
