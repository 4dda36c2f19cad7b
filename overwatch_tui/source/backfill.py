"""Events from before the terminal joined: asked of the daemon bit by bit, the newest first.

There is one question at a time. The pause after an answer is a multiple of the time that the answer took, so
that the live picture keeps four fifths of a slow link. Events seen before a reconnection are not asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import WireError

SendQuery = Callable[[str, dict[str, Any]], str]


@dataclass(frozen=True)
class Reach:
    """A span of time to ask for, and its resolution."""

    stream: str
    types: tuple[str, ...]
    seconds: float
    """Time before joining."""
    interval_seconds: float
    """Least time between two events of a type."""
    total_bytes: int
    """Limit after which nothing more is asked for, bytes of lines."""
    answer_bytes: int


FULL_REACHES = (
    Reach("metric", ("epoch", "drift", "ppo.update", "system"), 900.0, 1.0, 8 << 20, 256 << 10),
    Reach("life", (), 900.0, 0.0, 1 << 20, 128 << 10),
    Reach("metric", ("epoch", "drift", "system"), 3 * 3600.0, 10.0, 8 << 20, 256 << 10),
    Reach("life", ("incident",), 24 * 3600.0, 0.0, 1 << 20, 128 << 10),
)
PUBLISHED_REACHES = (
    Reach("metric", ("scalar",), 900.0, 0.0, 8 << 20, 256 << 10),
    Reach("life", (), 900.0, 0.0, 1 << 20, 128 << 10),
    Reach("metric", ("scalar",), 3 * 3600.0, 10.0, 8 << 20, 256 << 10),
)
"""Reaches for a run that a user's own loop publishes."""
THIN_REACHES = (
    Reach("metric", ("epoch", "drift"), 900.0, 20.0, 96 << 10, 2 << 10),
    Reach("life", ("round.finished", "incident", "governor.rollback"), 900.0, 0.0, 16 << 10, 2 << 10),
)
THIN_PUBLISHED_REACHES = (Reach("metric", ("scalar",), 900.0, 20.0, 96 << 10, 2 << 10), *THIN_REACHES[1:])
"""Reaches for links that are too slow for all metrics."""
MAX_QUESTIONS = 64
"""Most questions per reach: where its types are rare, there is much to search."""
PAUSE_RATIO = 4.0
"""Pause after an answer, as a multiple of the time that it took."""


@dataclass
class Stretch:
    """One stream's numbers that are missing, and what is left to ask of a reach."""

    reach: Reach
    before: int
    floor: int = 0
    num_bytes: int = 0
    questions: int = 0
    is_held: bool = True
    """True if the daemon has older ones that are missing."""
    done: bool = False

    def __post_init__(self) -> None:
        self.is_held = self.before > self.floor + 1

    @property
    def is_spent(self) -> bool:
        """True if as much was asked for as may be."""
        return self.num_bytes >= self.reach.total_bytes

    @property
    def question(self) -> dict[str, Any]:
        """Parameters of `history` for the next part."""
        return {
            "stream": self.reach.stream,
            "before": self.before,
            "types": list(self.reach.types),
            "interval": self.reach.interval_seconds,
            "bytes": self.reach.answer_bytes,
        }

    def take(self, result: dict[str, Any], lines: Sequence[bytes]) -> None:
        """Take note of an answer."""
        self.num_bytes += sum(map(len, lines))
        self.questions += 1
        self.before = min(self.before - 1, int(result["first"]))
        self.is_held = bool(result["more"]) and self.before > self.floor + 1


@dataclass
class Backfill:
    """Asks, and says which of the answered events are new.

    Args:
        request: sends a query; the answer comes as a `RequestOutcome`.
        reaches: what is asked for, in this order.
        published_reaches: the same of a published run.
    """

    request: SendQuery
    reaches: tuple[Reach, ...] = FULL_REACHES
    published_reaches: tuple[Reach, ...] = PUBLISHED_REACHES
    _known: Mapping[str, int] = field(default_factory=dict)
    """The newest number of each stream that was followed without a hole."""
    _seen: set[tuple[str, int]] = field(default_factory=set)
    """Numbers that are folded although they are older than the newest of the snapshot."""
    _stretches: list[Stretch] = field(default_factory=list)
    _asked: str | None = None
    _ask_at: float = 0.0
    _joined_ts: int = 0
    _is_joining: bool = True

    def rejoin(self, numbers: Mapping[str, int]) -> None:
        """Prepare for another snapshot of the same run; `numbers` are the newest that were folded."""
        if not self._is_joining:
            self._known = dict(numbers)
            self._stretches = [each for each in self._stretches if not each.done]
        self._is_joining, self._asked = True, None

    def note(self, event: Event) -> None:
        """Note an event that was folded as it came."""
        if self._is_joining:
            self._seen.add((event.stream, event.seq))

    def step(self, state: State, *, is_live: bool, is_caught_up: bool) -> None:
        """Ask the next question when it is due."""
        if not is_live or not is_caught_up or self._asked is not None:
            return
        if self._is_joining:
            self._is_joining, self._joined_ts = False, state.ts
            self._stretches[:0] = [
                Stretch(reach, state.numbers.get(reach.stream, 0) + 1, self._known.get(reach.stream, 0))
                for reach in (self.published_reaches if state.is_published else self.reaches)
            ]
            self._drop_seen()
        if time.monotonic() < self._ask_at:
            return
        stretch = next((each for each in self._stretches if not each.done), None)
        if stretch is None:
            return
        if stretch.is_held:
            self._asked = self.request("history", stretch.question)
        else:
            self._finish(stretch)

    def take(self, reply: RequestOutcome) -> list[Event] | None:
        """The events of an answer that are new, in the order of their numbers; None where it is another's."""
        if self._asked is None or reply.id != self._asked:
            return None
        self._asked = None
        self._ask_at = time.monotonic() + PAUSE_RATIO * reply.rtt_seconds
        stretch = next(each for each in self._stretches if not each.done)
        if reply.result is None:
            # An older daemon has no such query; one that is too busy keeps its time for the live picture.
            self._stretches = []
            return []
        found = list(decoded(reply.lines))
        oldest = self._joined_ts - int(stretch.reach.seconds * SECOND)
        new = [
            event
            for event in found
            if event.ts >= oldest
            and stretch.floor < event.seq < stretch.before
            and (event.stream, event.seq) not in self._seen
        ]
        self._seen.update((event.stream, event.seq) for event in new)
        stretch.take(reply.result, reply.lines)
        is_over = bool(found) and found[0].ts < oldest
        if is_over or stretch.is_spent or stretch.questions >= MAX_QUESTIONS or not stretch.is_held:
            self._finish(stretch)
        return new

    def _drop_seen(self) -> None:
        """Forget numbers that no stretch asks for any more."""
        floors: dict[str, int] = {}
        for each in self._stretches:
            stream = each.reach.stream
            floors[stream] = min(each.floor, floors.get(stream, each.floor))
        self._seen = {one for one in self._seen if one[0] in floors and one[1] > floors[one[0]]}

    def _finish(self, stretch: Stretch) -> None:
        """Go on with the next one; of the same stream and gap, from where this one has come to."""
        stretch.done = True
        for other in self._stretches:
            if not other.done and other.floor == stretch.floor and other.reach.stream == stretch.reach.stream:
                other.before = min(other.before, stretch.before)


def decoded(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of lines; what is none is passed over."""
    for line in lines:
        with suppress(WireError):
            yield decode_line(line)
