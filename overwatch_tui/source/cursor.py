"""The time cursor: the moment that every view shows; that of a live run is in `live_cursor`.

In a recording it is where the recording has been played to: going back folds it again from a keyframe.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.model.timeline import RunTimeline, Seek, SeekTarget, is_trouble
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


class Cursor:
    """Base of both cursors; every move returns a message for the operator, or an empty one."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
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

    def step_epochs(self, by: int) -> str:
        """Go to the epoch before (-1) or after; on the way somewhere, go on from there."""
        return self._step_from_here(by, "epoch")

    def step_incidents(self, by: int) -> str:
        """Go to where an incident began, the one before (-1) or after; likewise."""
        return self._step_from_here(by, "incident")

    def _step_from_here(self, by: int, what: str) -> str:
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
        marks = self.timeline.epochs if what == "epoch" else self.timeline.incidents
        here = self.shown.numbers.get(marks.stream, 0)
        if what == "epoch":
            here = marks.newest_at(here)
        one = -1 if by < 0 else 1
        for steps in (by, one):
            target = marks.neighbour(here, steps)
            if target is not None:
                self._keep_steps(what, by - steps)
                return self.go(target)
        return self._step_before(what, by) if by < 0 else self._step_beyond(what, by)

    def _step_before(self, what: str, by: int) -> str:  # noqa: ARG002
        return f"no {what} before this moment"

    def _step_beyond(self, what: str, by: int) -> str:
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

    def go_to(self, target: TimeTarget) -> str:
        """Go to a moment, which may lie behind what has been played."""
        self._steps_left.clear()
        if target.is_end:
            return self.to_end()
        if target.clock is None:
            return self.go(SeekTarget(ts=target.ts))
        known = self.timeline.epochs.find(*target.clock)
        if known is not None:
            return self.go(known)
        wanted, newest = target.clock, self.timeline.epochs.newest_clock
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
        keyframe = None
        if target.until is None:
            keyframe = self.timeline.keyframe_before(target)
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
        stop = is_trouble if what == "incident" else _is_epoch
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


def _is_epoch(event: Event) -> bool:
    return isinstance(event.data, EpochFinished)


def speed_name(speed: float) -> str:
    """`10` or `max`."""
    return "max" if math.isinf(speed) else f"{speed:g}"
