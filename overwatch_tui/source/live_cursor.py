"""The time cursor of a live run, which is folded on while the cursor stands in its past.

The past is read from a mirror of the run's journal. What was before the terminal joined is read once, when a
moment in it is wanted, into a timeline of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.model.timeline import Keyframe, RunTimeline, SeekTarget
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.events import RunStarted

from .cursor import Cursor, Moment, Seek
from .mirror import Mirror


class LiveCursor(Cursor):
    """Over what has come since the terminal joined, and before that over the past.

    Args:
        make_mirror: called once a run is joined.
    """

    def __init__(self, make_mirror: Callable[[], Mirror]) -> None:
        super().__init__()
        self._is_joining = True
        self._make_mirror = make_mirror
        self._mirror: Mirror | None = None
        self._parts: deque[Keyframe] = deque(maxlen=2)
        """Where the parts of the mirror begin that hold what came."""
        self._reading: Seek | None = None
        """What was before all that is held, on its way."""
        self._from_ts = math.inf
        """Time of the oldest moment that can be shown, microseconds."""
        self._retry: Callable[[], str] | None = None
        """The move that waits for the past to be read."""

    def rejoin(self) -> None:
        """Prepare for a snapshot of the same run."""
        self._is_joining = True

    def caught_up(self, state: State) -> None:
        """Note that the snapshot has been folded: from here on there are moments to go back to."""
        if not self._is_joining or not state.position:
            return
        self._is_joining, self._state = False, state
        keyframe = self.timeline.add_keyframe(state)
        if self._mirror is None:
            self._mirror = self._make_mirror()
            self._begin_part(keyframe)

    def fold(self, state: State, event: Event) -> None:
        self._state = state
        if event.seq <= state.numbers.get(event.stream, 0):
            state.fold(event)  # a snapshot repeats it
            return
        self.timeline.fold(state, event, is_joining=self._is_joining)
        if self._mirror is not None and self._mirror.append(event):
            self._begin_part(self.timeline.add_keyframe(state))

    def _begin_part(self, keyframe: Keyframe) -> None:
        is_full = len(self._parts) == self._parts.maxlen
        self._parts.append(keyframe)
        if is_full:  # the oldest part has gone
            self.timeline.begin_at(self._parts[0])
            self._reading = None
            del self.timelines[1:]
        if len(self.timelines) == 1:
            self._from_ts = self._parts[0].state.ts
        if self._seek is not None:  # what it reads from has moved
            self.notice = self.go(self._seek.target)

    @property
    def is_seeking(self) -> bool:
        return super().is_seeking or self._retry is not None

    @property
    def progress(self) -> str:
        if self._retry is None or self._mirror is None:
            return super().progress
        return self._mirror.amount if self._reading is None else self._reading.progress

    def hold(self, state: State, now: int) -> None:
        """Stand still at this moment while the run goes on; called again, back to it."""
        self._steps_left.clear()
        if self.is_seeking:
            self._seek = self._retry = None
        elif self.moment is not None:
            self.to_end()
        else:
            self.moment = Moment(state.frozen_copy(), now)

    def to_end(self) -> str:
        """Show the run as it is now."""
        self._steps_left.clear()
        self._seek = self.moment = self._retry = None
        return ""

    def _go_to_time(self, ts: int) -> str:
        if ts >= self._state.ts:
            return self.to_end()
        if ts == 0 and self.timelines[1:] and self._mirror is not None and self._mirror.is_spent:
            ts = int(min(self._from_ts, self._parts[0].state.ts))
        if ts >= self._from_ts:
            return self.go(SeekTarget(ts=ts))
        return self._go_before(lambda: self._go_to_time(ts), "that moment is not held")

    def _go_to_unknown(self, target: TimeTarget) -> str:
        assert target.clock is not None
        text = "round {} epoch {} is not held".format(*target.clock)
        newest = self.timeline.epochs.clock(-1)
        if newest is not None and target.clock > newest:
            return f"{text}: it has not come so far"
        return self._go_before(lambda: self._go_to(target), text)

    def change_speed(self, by: int) -> str:  # noqa: ARG002
        return "a live run has one speed; recordings have speeds: esper-tui --replay NAME"

    def go(self, target: SeekTarget) -> str:
        if self._mirror is None:
            return "nothing has come so far"
        for timeline in self.timelines:
            keyframe = timeline.keyframe_before(target)
            if keyframe is None:
                continue
            state = timeline.start(keyframe)
            try:
                self._seek = Seek(timeline, state, self._mirror.read_after(state), target)
            except EsperError as error:
                return str(error)
            return ""
        return self._go_before(lambda: self.go(target), "that moment is not held")

    def _step_before(self, what: str, by: int) -> str:
        return self._go_before(lambda: self._step(what, by), f"no {what} before this moment")

    def _step_beyond(self, what: str, by: int) -> str:  # noqa: ARG002
        if self.moment is None:
            return f"no {what} after this moment: this is live"
        return self.to_end()

    def _go_before(self, retry: Callable[[], str], refusal: str) -> str:
        """Read what was before all that is held, then try again; `refusal` where there is no more."""
        if self._mirror is None:
            return "nothing has come so far"
        if self.timelines[1:] and not self._mirror.fetch_more():
            return f"{refusal}: {self._mirror.begins}"
        del self.timelines[1:]
        self._seek, self._retry = None, retry
        return ""

    def step(self, seconds: float) -> None:
        if self._retry is not None:
            try:
                self._read_past(seconds)
            except EsperError as error:
                self._reading, self._retry, self.notice = None, None, str(error)
        elif self._seek is not None and self._seek.step(seconds):
            seek, self._seek = self._seek, None
            if seek.reader.problem is not None:
                self.notice = str(seek.reader.problem)
            else:
                self.moment = Moment(seek.state, seek.target.ts or seek.state.ts)

    def _read_past(self, seconds: float) -> None:
        mirror, border = self._mirror, self._parts[0]
        assert mirror is not None
        if not mirror.fetch(border.state.numbers):
            return
        if self._reading is None:
            self._reading = self._begin_reading(mirror, border)
        if not self._reading.step(seconds):
            return
        older, reader = self._reading.timeline, self._reading.reader
        if reader.problem is not None:
            raise reader.problem
        self._from_ts = max(reader.begin, mirror.whole_from)
        older.end_before(self.timeline, self._from_ts)
        self.timelines[1:] = [older]
        retry, self._retry, self._reading = self._retry, None, None
        assert retry is not None
        self.notice = retry()

    def _begin_reading(self, mirror: Mirror, border: Keyframe) -> Seek:
        state, run = State(), border.state.run
        reader = mirror.read()
        first = reader.peek()
        if run is not None and not isinstance(first and first.data, RunStarted):
            state.run, state.rounds_planned = run, run.rounds
            reader.rewind(state)  # it begins in the midst of a boot
        return Seek(RunTimeline(), state, reader, SeekTarget(border.state.numbers))

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
