"""Outcome of a recorded run, from its journal or from a lock that nobody holds any more."""

from __future__ import annotations

from pathlib import Path

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import RunStarted, RunStopped
from esper_overwatch.protocol.runs import next_commands
from esper_overwatch.protocol.storage.lock import holder_of

from .link_status import LinkStatus


class Outcome:
    """Takes the events of a recording as they are played.

    Args:
        path: of the journal; in a run's folder the lock lies beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopped: RunStopped | None = None
        self._kind = "training"

    def take(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event.data, RunStarted):
            self._stopped, self._kind = None, event.data.kind
        elif isinstance(event.data, RunStopped):
            self._stopped = event.data

    def update_link(self, link: LinkStatus, *, is_over: bool) -> None:
        """Say it at the end of the recording, and not before."""
        link.outcome = self._word() if is_over else ""
        done = self._stopped.done if self._stopped is not None else 0
        commands = next_commands(link.name or "", state=link.outcome, kind=self._kind, done=done)
        link.advice = ", or ".join(commands) if link.outcome else ""

    def _word(self) -> str:
        if self._stopped is not None:
            return "FAILED" if self._stopped.exit_code else "STOPPED"
        lock = self._path.parent / "lock"
        return "DIED" if lock.exists() and holder_of(lock) is None else ""
