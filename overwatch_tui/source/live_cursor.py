"""The time cursor of a live run, which is folded on while the cursor stands in its past.

What has come since the terminal joined is in memory. What was before is read as a recording, once a moment in
it is wanted, and put before it in the one timeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from esper_overwatch.overwatch_tui.model.event_memory import EventMemory
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.model.timeline import (
    EventReader,
    Folding,
    Keyframe,
    RunTimeline,
    Seek,
    SeekTarget,
)
from esper_overwatch.protocol.client.items import Item
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError

from .cursor import Cursor, Moment
from .past import Past

MakePast = Callable[[Keyframe], Past | None]
"""Gives what reads the events up to a keyframe; None where nothing can."""


class LiveCursor(Cursor):
    """Over what has come since the terminal joined, and before that over the past."""

    def __init__(self, make_past: MakePast = lambda _: None) -> None:
        super().__init__()
        self.memory = EventMemory()
        self._is_joining = True
        self._make_past = make_past
        self._past: Past | None = None
        self._retry: Callable[[], str] | None = None
        """The move that waits for the past to be read."""

    def rejoin(self, *, is_new_run: bool) -> None:
        """Prepare for a snapshot of the same run or of another."""
        self._is_joining = True
        if is_new_run:
            self.close()
            self.timeline, self._folding, self.memory = RunTimeline(), Folding(), EventMemory()
            self._seek = self.moment = self._past = self._retry = None
            self._steps_left.clear()

    def caught_up(self, state: State) -> None:
        """Note that the snapshot has been folded: from here on there are moments to go back to."""
        if self._is_joining and self._folding.position:
            self._is_joining = False
            self._folding.state = state
            self.timeline.add_keyframe(self._folding)

    def fold(self, state: State, event: Event) -> None:
        self._folding.state = state
        if event.seq <= state.numbers.get(event.stream, 0):
            state.fold(event)  # a snapshot repeats it
            return
        self.timeline.fold(self._folding, event, is_joining=self._is_joining)
        self.memory.append(event)
        self.timeline.drop_before(self.memory.first)
        if not self.timeline.keyframes and not self._is_joining:
            self.timeline.add_keyframe(self._folding)

    @property
    def is_seeking(self) -> bool:
        return super().is_seeking or self._retry is not None

    @property
    def progress(self) -> str:
        if self._retry is not None and self._past is not None:
            return self._past.progress
        return super().progress

    def hold(self, state: State, now: int) -> None:
        """Stand still at this moment while the run goes on; called again, back to it."""
        self._steps_left.clear()
        if self.is_seeking:
            self._seek = self._retry = None
        elif self.moment is not None:
            self.to_end()
        else:
            self.moment = Moment(state.frozen_copy(), now, self._folding.position)

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
        if ts >= self._folding.ts:
            return self.to_end()
        border = self.timeline.keyframes[0].ts if self.timeline.keyframes else math.inf
        past = self._past
        if past is not None and self._is_past_read:
            border = past.from_ts
            if ts == 0 and past.is_spent and border < math.inf:
                ts = int(border)
        if ts >= border:
            return self.go(SeekTarget(ts=ts))
        return self._go_before(lambda: self._go_to_time(ts), "that moment is not held")

    def _go_to_clock(self, round_: int, epoch: int) -> str:
        position = self.timeline.clock_position(round_, epoch)
        if position is not None:
            return self.go(SeekTarget(position=position))
        text = f"round {round_} epoch {epoch} is not held"
        epochs = self.timeline.epochs
        if epochs and (round_, epoch) > epochs.newest_clock:
            return f"{text}: it has not come so far"
        return self._go_before(lambda: self._go_to_clock(round_, epoch), text)

    def change_speed(self, by: int) -> str:  # noqa: ARG002
        return "a live run has one speed; recordings have speeds: esper-tui --replay NAME"

    def go(self, target: SeekTarget) -> str:
        keyframe = self.timeline.keyframe_before(position=target.position, ts=target.ts)
        if keyframe is None:
            return "that moment is not held"
        present = self.timeline.start(keyframe)
        reader: EventReader
        if keyframe.position >= self.timeline.keyframes[0].position:
            reader = _MemoryReader(self.memory.read(keyframe.position))
        else:
            assert self._past is not None
            try:
                reader = self._past.read_after(present)
            except EsperError as error:
                return str(error)
        self._seek = Seek(self.timeline, present, reader, target)
        return ""

    def _step(self, what: str, by: int) -> str:
        """As the base's; where what the moment was read from has been dropped, read it again."""
        first = self.timeline.keyframes[:1]
        is_past = self.moment is not None and bool(first) and self.moment.position < first[0].position
        if is_past and not self._is_past_read:
            return self._step_before(what, by)
        return super()._step(what, by)

    def _step_before(self, what: str, by: int) -> str:
        return self._go_before(lambda: self._step(what, by), f"no {what} before this moment")

    def _step_beyond(self, what: str, by: int) -> str:  # noqa: ARG002
        if self.moment is None:
            return f"no {what} after this moment: this is live"
        return self.to_end()

    @property
    def _is_past_read(self) -> bool:
        """True if it has been read up to the first event in memory."""
        past = self._past
        return past is not None and past.is_read and past.border in self.timeline.keyframes[:1]

    def _go_before(self, retry: Callable[[], str], refusal: str) -> str:
        """Read what was before all that is held, then try again; `refusal` where there is no more."""
        if not self.timeline.keyframes:
            return "nothing has come so far"
        first = self.timeline.keyframes[0]
        if self._past is None or self._past.border is not first:  # the oldest events in memory have gone
            self.close()
            self._past = self._make_past(first)
            if self._past is None:
                return f"{refusal}: joined later; --replay shows the whole run"
        elif self._past.is_read and not self._past.ask_more():
            return f"{refusal}: {self._past.begins}"
        self._seek, self._retry = None, retry
        return ""

    def step(self, seconds: float) -> None:
        if self._retry is not None:
            self._read_past(seconds)
        elif self._seek is not None and self._seek.step(seconds):
            found, target = self._seek.folding, self._seek.target
            self.moment = Moment(found.state, target.ts or found.ts, found.position)
            self._seek = None

    def _read_past(self, seconds: float) -> None:
        past, retry = self._past, self._retry
        assert past is not None
        assert retry is not None
        try:
            older = past.step(seconds)
        except EsperError as error:
            self._retry, self.notice = None, str(error)
            return
        if older is None:
            return
        self._retry = None
        if self._is_past_read:
            self.timeline.put_before(older, past.from_ts)
            self._place_moment()
        self.notice = retry()

    def _place_moment(self) -> None:
        """Know the position of the moment: a past that is read again can have other events than before."""
        if self.moment is not None:
            ctx = self.moment.state.epoch_ctx
            epoch = self.timeline.clock_position(ctx.round, ctx.epoch)
            if epoch is not None and self.timeline.epoch_at(self.moment.position) != epoch:
                self.moment = self.moment._replace(position=epoch)

    def close(self) -> None:
        """Forget the past."""
        if self._past is not None:
            self._past.close()
            self._past = None


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
