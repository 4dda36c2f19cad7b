"""The time cursor of a live run, which is folded on while the cursor stands in its past.

The past is read from a mirror of the run's journal. What was before the terminal joined is read once, when a
moment in it is wanted, and put before the rest in the one timeline.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.model.timeline import Keyframe, RunTimeline, Seek, SeekTarget
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.events import RunStarted

from .cursor import Cursor, Moment
from .mirror import Mirror, WireMirror
from .replay import ReplayFeed


class LiveCursor(Cursor):
    """Over what has come since the terminal joined, and before that over the past.

    Args:
        make_mirror: called once a run is joined.
    """

    def __init__(self, make_mirror: Callable[[], Mirror] = WireMirror) -> None:
        super().__init__()
        self._is_joining = True
        self._make_mirror = make_mirror
        self._mirror: Mirror | None = None
        self._parts: deque[Keyframe] = deque(maxlen=2)
        """Where the parts of the mirror begin that hold what came."""
        self._reader: ReplayFeed | None = None
        self._older = RunTimeline()
        self._reading: Seek | None = None
        """What was before all that is held, folded into `_older`."""
        self._is_past_read = False
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
        if is_full or len(self._parts) == 1:
            self._from_ts, self._reading, self._is_past_read = self._parts[0].state.ts, None, False

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

    def go_to(self, target: TimeTarget) -> str:
        self._steps_left.clear()
        if target.is_end:
            return self.to_end()
        if target.clock is not None:
            return self._go_to_clock(*target.clock)
        assert target.ts is not None
        return self._go_to_time(target.ts)

    def _go_to_time(self, ts: int) -> str:
        if ts >= self._state.ts:
            return self.to_end()
        if ts == 0 and self._is_past_read and self._mirror is not None and self._mirror.is_spent:
            ts = int(min(self._from_ts, self._parts[0].state.ts))
        if ts >= self._from_ts:
            return self.go(SeekTarget(ts=ts))
        return self._go_before(lambda: self._go_to_time(ts), "that moment is not held")

    def _go_to_clock(self, round_: int, epoch: int) -> str:
        target = self.timeline.epochs.find(round_, epoch)
        if target is not None:
            return self.go(target)
        text = f"round {round_} epoch {epoch} is not held"
        newest = self.timeline.epochs.newest_clock
        if newest is not None and (round_, epoch) > newest:
            return f"{text}: it has not come so far"
        return self._go_before(lambda: self._go_to_clock(round_, epoch), text)

    def change_speed(self, by: int) -> str:  # noqa: ARG002
        return "a live run has one speed; recordings have speeds: esper-tui --replay NAME"

    def go(self, target: SeekTarget) -> str:
        keyframe = self.timeline.keyframe_before(target)
        if keyframe is None or self._mirror is None:
            return "that moment is not held"
        state = self.timeline.start(keyframe)
        try:
            self._reader = self._mirror.read_after(state)
        except EsperError as error:
            return str(error)
        self._seek = Seek(self.timeline, state, self._reader, target)
        return ""

    def _step(self, what: str, by: int) -> str:
        """As the base's; where what the moment was read from has been dropped, read it again."""
        if self._parts and self.shown.position < self.timeline.keyframes[0].state.position:
            return self._step_before(what, by)
        return super()._step(what, by)

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
        if not (self._mirror.fetch_more() if self._is_past_read else self._mirror.has_past):
            return f"{refusal}: {self._mirror.begins}"
        self._is_past_read, self._seek, self._retry = False, None, retry
        return ""

    def step(self, seconds: float) -> None:
        if self._retry is not None:
            try:
                self._read_past(seconds)
            except EsperError as error:
                self._reading, self._retry, self.notice = None, None, str(error)
        elif self._seek is not None and self._seek.step(seconds):
            seek, self._seek = self._seek, None
            assert self._reader is not None
            if self._reader.problem is not None:
                self.notice = str(self._reader.problem)
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
        assert self._reader is not None
        if self._reader.problem is not None:
            raise self._reader.problem
        self.timeline.put_before(self._older, border, mirror.whole_from)
        self._from_ts = max(self._first_ts, mirror.whole_from)
        retry, self._retry, self._reading, self._is_past_read = self._retry, None, None, True
        assert retry is not None
        self.notice = retry()

    def _begin_reading(self, mirror: Mirror, border: Keyframe) -> Seek:
        state, run = State(), border.state.run
        self._reader = reader = mirror.read()
        first = reader.peek()
        self._first_ts = first.ts if first is not None else 0
        if run is not None and not isinstance(first and first.data, RunStarted):
            state.run, state.rounds_planned = run, run.rounds
            reader.rewind(state)  # it begins in the midst of a boot
        self._older = RunTimeline()
        return Seek(self._older, state, reader, SeekTarget(border.state.numbers))

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
