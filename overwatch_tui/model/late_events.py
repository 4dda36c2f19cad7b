"""Events that are older than what has been folded: they add to curves, log and counts, to nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.codec.json_lines import Event

from .log_entries import log_entry
from .state import State


def fold_late(state: State, events: Sequence[Event]) -> None:
    """Take in events from before the terminal joined, in the order of their numbers."""
    for event in events:
        state.curves.fold(event)
        state.anomaly_history.fold(event)
    entries = [entry for event in events if (entry := log_entry(event)) is not None]
    if entries:
        merged = sorted((*entries, *state.log), key=lambda entry: entry.ts)
        state.log.clear()
        state.log.extend(merged)
