"""Which events of a journal still count: a boot that resumes plays anew what came after its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocol.wire import Event

Position = tuple[int, int, int]
"""Round, epochs finished, and 1 at the round's end."""
PLAYED = frozenset({"round.started", "epoch", "seed.stage", "round.finished"})
"""Types that a resumed boot tells again."""
_FIRST = frozenset({"round.started", "epoch", "round.finished"})


def position(event: Event) -> Position:
    """Where in the run an event belongs."""
    return event.ctx.round, event.ctx.epoch, int(event.type == "round.finished")


class Timeline:
    """Where each boot of a journal began to play.

    Args:
        events: all of them, in the journal's order.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._starts: list[Position | None] = []
        for event in events:
            if event.type == "run.started":
                self._starts.append(None)
            elif event.type in _FIRST and self._starts and self._starts[-1] is None:
                self._starts[-1] = position(event)

    def valid(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events again, without those that a later boot has played anew."""
        boot = -1
        limit: Position | None = None
        for event in events:
            if event.type == "run.started":
                boot += 1
                later = [start for start in self._starts[boot + 1 :] if start is not None]
                limit = min(later, default=None)
            if limit is not None and event.type in PLAYED and position(event) >= limit:
                continue
            yield event
