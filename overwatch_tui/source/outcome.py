"""What became of a run that is over, and what to type next."""

from __future__ import annotations

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import RunStarted, RunStopped
from esper_overwatch.protocol.next_commands import next_commands

from .link_status import LinkStatus


class Outcome:
    """Outcome of a run, from its last event, or from its silence."""

    def __init__(self) -> None:
        self._stopped: RunStopped | None = None
        self._kind = "training"

    def take(self, event: Event) -> None:
        if isinstance(event.data, RunStarted):
            self._stopped, self._kind = None, event.data.kind
        elif isinstance(event.data, RunStopped):
            self._stopped = event.data

    def update_link(self, link: LinkStatus, *, is_over: bool, has_died: bool) -> None:
        """Enter the outcome once the run is over, and not before.

        Args:
            has_died: no process holds it, whether or not it said a last word.
        """
        stopped = self._stopped if is_over else None
        link.outcome = stopped.final_state if stopped is not None else "DIED" if has_died else ""
        link.stopped_by = stopped.stopped_by.partition(" (")[0] if stopped is not None else ""
        done = stopped.done if stopped is not None else 0
        commands = next_commands(link.name or "", state=link.outcome, kind=self._kind, done=done)
        link.advice = ", or ".join(commands) if link.outcome else ""
