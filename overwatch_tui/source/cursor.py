"""The time cursor: the moment that every view shows; that of a live run is in `live_cursor`.

In a recording it is where the recording has been played to: going back folds it again from a keyframe.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.model.timeline import RunTimeline, SeekTarget, is_trouble
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.events import EpochFinished

from .replay import ReplayFeed

SEEK_SECONDS = 0.05
"""Time that the cursor may take, thirty times a second."""
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, math.inf)


class Moment(NamedTuple):
    """A state of the run, and when it was."""

    state: State
    ts: int
    """Microseconds."""


class Seek:
    """Folds up to a target, in slices of time."""

    def __init__(self, timeline: RunTimeline, state: State, reader: ReplayFeed, target: SeekTarget) -> None:
        self.timeline = timeline
        self.state = state
        self.target = target
        self.reader = reader
        self._begin = dict(state.numbers), state.ts
        self.is_met = False
        """True if the target was reached, False at the end of all events."""

    def step(self, seconds: float) -> bool:
        """Go on for about `seconds`; True once it is over."""
        end = time.monotonic() + seconds
        target = self.target
        while True:
            event = self.reader.peek()
            self.is_met = target.is_reached(self.state) or (
                target.ts is not None and event is not None and event.ts > target.ts
            )
            if event is None or self.is_met:
                return True
            for item in self.reader.take():
                if isinstance(item, Reset):
                    self.state = self.state.reset_copy(item.reason, now=self.state.ts)
                elif isinstance(item, Event):
                    self.timeline.fold(self.state, item)
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


class Cursor:
    """Base of both cursors; every move returns a message for the operator, or an empty one."""

    def __init__(self) -> None:
        self.timelines = [RunTimeline()]
        """What can be gone back to; a second one has what was before the first one's first keyframe."""
        self.moment: Moment | None = None
        """Moment that is shown instead of the newest state."""
        self.notice = ""
        """Message of a move that took time; whoever shows it empties it."""
        self._state = State()
        """The newest one."""
        self._seek: Seek | None = None
        self._steps_left: dict[str, int] = {}
        """Steps left by `epoch` or `incident`, of keys that came on the way."""

    @property
    def timeline(self) -> RunTimeline:
        """What was folded as it came."""
        return self.timelines[0]

    @property
    def is_seeking(self) -> bool:
        """True while it is on its way to another moment."""
        return self._seek is not None

    @property
    def is_held(self) -> bool:
        """True if the moment that is shown stands still."""
        return self.moment is not None

    @property
    def progress(self) -> str:
        """Progress on its way, such as `43%`; empty where it is on none."""
        return "" if self._seek is None else self._seek.progress

    @property
    def shown(self) -> State:
        """State at the moment that is shown."""
        return self._state if self.moment is None else self.moment.state

    @property
    def num_after(self) -> int:
        """Events of the run after the moment that is shown."""
        return self.timeline.end - self.shown.position

    def fold(self, state: State, event: Event) -> None:
        self._state = state
        self.timeline.fold(state, event)

    def step_by(self, by: int, what: str) -> str:
        """Go `by` epochs or incidents on (negative: back), as `what` says; on the way, go on from there."""
        if not self.is_seeking:
            return self._step(what, by)
        self._keep_steps(what, by)
        return ""

    def _keep_steps(self, what: str, by: int) -> None:
        self._steps_left[what] = self._steps_left.get(what, 0) + by

    def step_on(self) -> None:
        """Once it has arrived, take the steps that keys have asked for meanwhile; none where it could not."""
        while self._steps_left and not self.is_seeking and not self.notice:
            what, by = self._steps_left.popitem()
            self.notice = self._step(what, by) if by else ""
        if self.notice:
            self._steps_left.clear()

    def _step(self, what: str, by: int) -> str:
        """Go `by` marks on (negative: back); where that many are not known, one now and the others later."""
        if self.shown.position < self.timelines[-1].begin:  # what it was read from has gone
            return self._step_before(what, by)
        own, *others = sorted(self.timelines, key=lambda each: self.shown.position < each.begin)
        marks, one = own.marks(what), -1 if by < 0 else 1
        here = self.shown.numbers.get(marks.stream, 0)
        if what == "epoch":
            here = marks.newest_at(here)
        for timeline, steps in ((own, by), (own, one), *((each, one) for each in others)):
            target = timeline.marks(what).neighbour(here, steps)
            if target is not None:
                self._keep_steps(what, by - steps)
                return self.go(target)
        return self._step_before(what, by) if by < 0 else self._step_beyond(what, by)

    def _step_before(self, what: str, by: int) -> str:  # noqa: ARG002
        return f"no {what} before this moment"

    def _step_beyond(self, what: str, by: int) -> str:
        raise NotImplementedError

    def go_to(self, target: TimeTarget) -> str:
        """Go to a moment that somebody wants, which in a recording may lie behind what has been played."""
        self._steps_left.clear()
        return self._go_to(target)

    def _go_to(self, target: TimeTarget) -> str:
        if target.is_end:
            return self.to_end()
        if target.clock is None:
            return self._go_to_time(target.ts or 0)
        for timeline in self.timelines:
            if (known := timeline.epochs.find(*target.clock)) is not None:
                return self.go(known)
        return self._go_to_unknown(target)

    def _go_to_time(self, ts: int) -> str:
        return self.go(SeekTarget(ts=ts))

    def _go_to_unknown(self, target: TimeTarget) -> str:
        """Go to an epoch that was not folded so far."""
        raise NotImplementedError

    def to_end(self) -> str:
        """Go to the newest moment."""
        raise NotImplementedError

    def go(self, target: SeekTarget) -> str:
        """Go to a moment that the timeline knows, or on from here to the first that meets the target."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what was opened."""


class RecordedCursor(Cursor):
    """The place up to which a recording has been played."""

    def __init__(self, feed: ReplayFeed) -> None:
        super().__init__()
        self._feed = feed

    @property
    def is_held(self) -> bool:
        return self._feed.is_paused or self.moment is not None

    def hold(self, state: State, now: int) -> None:  # noqa: ARG002
        """Pause, or play on; on the way somewhere, stop where it has come to."""
        self._steps_left.clear()
        if self._seek is not None:
            self._seek.target = SeekTarget(dict(self._seek.state.numbers))
        else:
            self._feed.is_paused = not self._feed.is_paused

    def to_end(self) -> str:
        self._steps_left.clear()
        return self.go(SeekTarget())

    def _go_to_unknown(self, target: TimeTarget) -> str:
        wanted, newest = target.clock, self.timeline.epochs.clock(-1)
        assert wanted is not None
        if newest is not None and newest > wanted:
            return f"round {wanted[0]} epoch {wanted[1]} is not in the recording"

        def reached(event: Event) -> bool:
            return isinstance(event.data, EpochFinished) and (event.ctx.round, event.ctx.epoch) >= wanted

        return self.go(SeekTarget(until=reached))

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

    def go(self, target: SeekTarget) -> str:
        feed = self._feed
        present = self._state if self._seek is None else self._seek.state
        now, shown = feed.now(), present
        is_back = target.is_behind(present.numbers, present.ts)
        keyframe = self.timeline.keyframe_before(target) if target.until is None else None
        if keyframe is None and is_back:
            keyframe = self.timeline.keyframes[0]
        if keyframe is not None and (is_back or keyframe.state.position > present.position):
            present = self.timeline.start(keyframe)
            try:
                feed.rewind(present)
            except EsperError as error:
                self._steps_left.clear()
                return str(error)
        if self._seek is None:
            self.moment = Moment(shown.frozen_copy(), now)
        feed.is_paused = True
        self._seek = Seek(self.timeline, present, feed, target)
        return ""

    def _step_beyond(self, what: str, by: int) -> str:
        stop = is_trouble if what == "incident" else lambda event: isinstance(event.data, EpochFinished)
        self._keep_steps(what, by - 1)
        return self.go(SeekTarget(until=stop))

    def step(self, seconds: float) -> State | None:
        """Go on towards a moment; gives the state at it."""
        if self._seek is None or not self._seek.step(seconds):
            return None
        seek, self._seek, self.moment = self._seek, None, None
        self._state = seek.state
        self._feed.clock = max(seek.state.ts, (seek.target.ts or 0) if seek.is_met else 0)
        if seek.target.until is not None and not seek.is_met:
            self.notice = "not after this moment: the recording ends here"
        return seek.state


def speed_name(speed: float) -> str:
    """`10` or `max`."""
    return "max" if math.isinf(speed) else f"{speed:g}"
