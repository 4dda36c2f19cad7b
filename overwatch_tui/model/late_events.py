"""Events older than what has been folded: they add to curves, log, counts, lives of seeds only."""

from __future__ import annotations

from collections.abc import Sequence

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import EpochFinished, RoundFinished, SeedGate, SeedStage

from .log_entries import log_entry
from .state import State


def fold_late(state: State, events: Sequence[Event]) -> None:
    """Take in events from before the terminal joined, in the order of their numbers."""
    for event in events:
        state.curves.fold(event)
        state.anomaly_history.fold(event)
        if isinstance(event.data, SeedStage | SeedGate):
            state.stories.note(event)
        elif isinstance(event.data, EpochFinished):
            state.tell_epoch(event)
        elif isinstance(event.data, RoundFinished):
            state.stories.reach(event, is_over=True)
    entries = [entry for event in events if (entry := log_entry(event)) is not None]
    if entries:
        merged = sorted((*entries, *state.log), key=lambda entry: entry.ts)
        state.log.clear()
        state.log.extend(merged)
