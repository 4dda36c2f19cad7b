"""The time cursor of a live run, which is folded on while the cursor stands in its past.

What has come since the terminal joined is in memory; what was before is read as a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from esper_overwatch.overwatch_tui.model.event_memory import EventMemory
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.model.timeline import Folding, RunTimeline, Seek, SeekTarget
from esper_overwatch.protocol.client.items import Item
from esper_overwatch.protocol.codec.json_lines import Event

from .cursor import Cursor, Moment
from .past import Past
from .past_cursor import Find, PastCursor

MakePast = Callable[[Mapping[str, int]], Past | None]
"""Gives what reads the events up to these numbers per stream; None where nothing can."""


class LiveCursor(Cursor):
    """Over what has come since the terminal joined, and before that over the past."""

    def __init__(self, make_past: MakePast = lambda _: None) -> None:
        super().__init__()
        self.memory = EventMemory()
        self._is_joining = True
        self._make_past = make_past
        self._past: PastCursor | None = None
        self._is_past = False
        """True if the moment that is shown lies before the events in memory."""

    def rejoin(self, *, is_new_run: bool) -> None:
        """Prepare for a snapshot of the same run or of another."""
        self._is_joining = True
        if is_new_run:
            self.close()
            self.timeline, self._folding, self.memory = RunTimeline(), Folding(), EventMemory()
            self._seek = self.moment = self._past = None
            self._steps_left.clear()
            self._is_past = False

    def caught_up(self, state: State) -> None:
        """Note that the snapshot has been folded: from here on there are moments to go back to."""
        if self._is_joining and self._folding.position:
            self._is_joining = False
            self._folding.state = state
            self.timeline.add_keyframe(self._folding)

    def fold(self, state: State, event: Event) -> None:
        self._folding.state = state
        self.timeline.fold(self._folding, event, is_joining=self._is_joining)
        self.memory.append(event)
        self.timeline.drop_before(self.memory.first)
        if not self.timeline.keyframes and not self._is_joining:
            self.timeline.add_keyframe(self._folding)

    @property
    def is_seeking(self) -> bool:
        return super().is_seeking or (self._past is not None and self._past.is_seeking)

    @property
    def progress(self) -> str:
        if self._past is not None and self._past.is_seeking:
            return self._past.progress
        return super().progress

    @property
    def num_after(self) -> int:
        if not self._is_past or self._past is None:
            return super().num_after
        then = self._past.numbers
        return sum(newest - then.get(stream, 0) for stream, newest in self._folding.numbers.items())

    def hold(self, state: State, now: int) -> None:
        """Stand still at this moment while the run goes on; called again, back to it."""
        self._steps_left.clear()
        if self._past is not None and self._past.is_seeking:
            self._past.stop()
        elif self.moment is not None:
            self.to_end()
        else:
            self.moment = Moment(state.frozen_copy(), now, self._folding.position)

    def to_end(self) -> str:
        """Show the run as it is now."""
        self._steps_left.clear()
        self._leave_past()
        self._seek = self.moment = None
        return ""

    def _leave_past(self) -> None:
        self._is_past = False
        if self._past is not None:
            self._past.stop()

    def go_to(self, target: TimeTarget) -> str:
        self._steps_left.clear()
        if target.is_end:
            return self.to_end()
        if target.clock is not None:
            return self._go_to_clock(*target.clock)
        ts = target.ts
        assert ts is not None
        if ts >= self._folding.ts:
            return self.to_end()
        if self.timeline.keyframe_before(ts=ts) is not None:
            return self.go(SeekTarget(ts=ts))
        return self._go_before(lambda past: past.to_time(ts), "that moment is not held")

    def _go_to_clock(self, round_: int, epoch: int) -> str:
        position = self.timeline.clock_position(round_, epoch)
        if position is not None:
            return self.go(SeekTarget(position=position))
        text = f"round {round_} epoch {epoch} is not held"
        epochs = self.timeline.epochs
        if epochs and (round_, epoch) > epochs.newest_clock:
            return f"{text}: it has not come so far"
        return self._go_before(lambda past: past.to_clock((round_, epoch)), text)

    def change_speed(self, by: int) -> str:  # noqa: ARG002
        return "a live run has one speed; recordings have speeds: esper-tui --replay NAME"

    def go(self, target: SeekTarget) -> str:
        keyframe = self.timeline.keyframe_before(position=target.position, ts=target.ts)
        if keyframe is None:
            return "that moment is not held"
        self._leave_past()
        reader = _MemoryReader(self.memory.read(keyframe.position))
        self._seek = Seek(self.timeline, self.timeline.start(keyframe), reader, target)
        return ""

    def _step(self, what: str, by: int) -> str:
        if not self._is_past:
            return super()._step(what, by)
        if by < 0:
            return self._step_before(what, by)
        return self._search(self._step_in_past(what, by), otherwise=lambda: self._step_into_memory(what, by))

    def _step_in_past(self, what: str, by: int) -> Find:
        def find(past: PastCursor) -> SeekTarget | None:
            target, steps = past.step_by(what, by)
            if target is not None:
                self._keep_steps(what, by - steps)
            return target

        return find

    def _step_into_memory(self, what: str, by: int) -> str:
        """Step from the last mark before joining to the first in memory."""
        marks = self._marks(what)
        if not marks.positions:
            return self.to_end()
        self._keep_steps(what, by - 1)
        return self.go(SeekTarget(position=marks.positions[0]))

    def _step_before(self, what: str, by: int) -> str:
        return self._go_before(self._step_in_past(what, by), f"no {what} before this moment")

    def _step_beyond(self, what: str, by: int) -> str:  # noqa: ARG002
        if self.moment is None:
            return f"no {what} after this moment: this is live"
        return self.to_end()

    def _go_before(self, find: Callable[[PastCursor], SeekTarget | None], text: str) -> str:
        """Go to a moment from before joining; `text` where there is none."""

        def refuse() -> str:
            return text if self._past is None else f"{text}: {self._past.begins}"

        return self._search(find, otherwise=refuse, is_back=True)

    def _search(
        self,
        find: Callable[[PastCursor], SeekTarget | None],
        *,
        otherwise: Callable[[], str],
        is_back: bool = False,
    ) -> str:
        if not self.timeline.keyframes:
            return "nothing has come so far"
        first = self.timeline.keyframes[0]
        if self._past is None or self._past.border < first.ts:
            self.close()
            past = self._make_past(first.numbers)
            if past is None:
                return f"{otherwise()}: joined later; --replay shows the whole run"
            self._past = PastCursor(past, first.ts, first.state.run)
        self._seek = None
        shown = self.moment if self._is_past else None
        epochs = self.timeline.epochs
        self._past.search(
            find,
            otherwise,
            is_back=is_back,
            since=(shown.state.epoch_ts, shown.ts) if shown is not None else None,
            first_epoch=epochs.times[0] if epochs else first.ts + 1,
        )
        return ""

    def step(self, seconds: float) -> None:
        past = self._past
        if past is not None and past.is_seeking:
            moment = past.step(seconds)
            self.notice, past.notice = past.notice, ""
            if moment is not None:
                self.moment, self._is_past = moment, True
            return
        if self._seek is None or not self._seek.step(seconds):
            return
        found, target = self._seek.folding, self._seek.target
        self.moment = Moment(found.state, target.ts or found.ts, found.position)
        self._seek = None

    def close(self) -> None:
        """Forget the past."""
        if self._past is not None:
            self._past.close()


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
