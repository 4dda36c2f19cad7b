"""Timeline of a journal's valid events: a boot that resumes repeats what came after its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import oldest_numbers, read
from esper_overwatch.protocol.messages.events import RunRewound

Position = tuple[int, int, int]
"""Round, epochs finished, and the order of what has this clock: `order_in_epoch`."""
_OUTCOMES = frozenset({"epoch", "rank.epoch", "layers", "governor.rollback", "drift"})
_DECISIONS = frozenset({"seed.stage", "seed.gate", "governor.veto"})
OF_ROUND = frozenset(
    {
        "ppo.update",
        "teacher.round",
        "shapley.computed",
        "seed.ended",
        "episode.finished",
        "round.finished",
        "evaluation.finished",
    }
)
REPEATED_TYPES = {"round.started"} | _OUTCOMES | _DECISIONS | OF_ROUND
"""Types that a resumed boot emits again: those of an epoch, and those that come after a round's last."""
FIRST_TYPES = frozenset(
    {"run.rewound", "round.started", "epoch", "seed.stage", "seed.gate", "round.finished"}
)
"""The first of these says where a boot began to play; boots of 0.2.0 and before have no `run.rewound`."""


def order_in_epoch(type_: str) -> int:
    """Order of events with the same clock: the round's start, an epoch's outcome, the decisions upon it, then
    the round's end."""
    if type_ in OF_ROUND:
        return 3
    return 2 if type_ in _DECISIONS else int(type_ in _OUTCOMES)


def position(event: Event) -> Position:
    """Position of an event in the run; of `run.rewound` the first that is void."""
    if isinstance(event.data, RunRewound):
        return event.data.round, event.data.epoch, 3 if event.data.epoch else 0
    return event.ctx.round, event.ctx.epoch, order_in_epoch(event.type)


class Timeline:
    """Positions at which the boots of a journal began to train.

    Events before the first `run.started` are of a boot whose start retention has removed.

    Args:
        events: all of them, in the journal's order.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._starts: list[Position | None] = [None]
        for event in events:
            if event.type == "run.started":
                self._starts.append(None)
            elif event.type in FIRST_TYPES and self._starts[-1] is None:
                self._starts[-1] = position(event)

    def valid(self, events: Iterable[Event]) -> Iterator[Event]:
        """Pass events through, without those that a later boot has repeated."""
        boot = 0
        limit = self._limit(boot)
        for event in events:
            if event.type == "run.started":
                boot += 1
                limit = self._limit(boot)
            if limit is not None and event.type in REPEATED_TYPES and position(event) >= limit:
                continue
            yield event

    def _limit(self, boot: int) -> Position | None:
        """The first position that a later boot has repeated."""
        return min((start for start in self._starts[boot + 1 :] if start is not None), default=None)


def valid_events(journal: Path, damage: DamageReport) -> Iterator[Event]:
    """Yield a run's valid events, in the order written; read twice.

    Args:
        damage: learns what could not be read.

    Raises:
        FolderError: the journal cannot be read.
    """
    damage.expect(oldest_numbers(journal))
    timeline = Timeline(read(journal, on_bad=lambda *_: None))
    return timeline.valid(damage.watch(read(journal, on_bad=damage.note)))
