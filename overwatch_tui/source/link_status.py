"""State of the connection to the daemon, as the header shows it, and what became of a run that is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import RunStarted, RunStopped
from esper_overwatch.protocol.next_commands import next_commands


@dataclass
class LinkStatus:
    """State of the link, updated by the feed once per tick."""

    state: str = "searching"
    """searching, connecting, live, slow, stale, lost, ended; replay for a recorded run."""
    age_seconds: float | None = None
    """Seconds since the last heartbeat; None before the first."""
    is_caught_up: bool = True
    """False from joining until the whole snapshot has been taken in: what is shown so far is old."""
    name: str | None = None
    """Name of the run, where it is known."""
    problem: str = ""
    """Why there is no connection and what to do about it; empty where no problem is known."""
    farewell: str = ""
    """Why the daemon stopped, in its last heartbeat."""
    events_per_second: float | None = None
    """Events per second, over the last ten."""
    gaps: int = 0
    repaired: int = 0
    skipped: int = 0
    bad: int = 0
    """Frames and lines that could not be read."""
    last_bad: str = ""
    events: int = 0
    bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Events that the daemon refused, by stream."""
    trainer: str | None = None
    """State of the trainer in the last heartbeat."""
    trainer_age_seconds: float | None = None
    """Seconds since the trainer's loop last sent a heartbeat."""
    num_clients: int | None = None
    methods: frozenset[str] = frozenset()
    """Methods that the daemon answers."""
    lease: str = ""
    """Fingerprint of the lease that this terminal commands with; empty = none."""
    is_replay: bool = False
    """True for a recording, which accepts no commands."""
    replay_speed: float | None = None
    opening: str = ""
    """Share of a recording that has been read, as `30%`, while it is opened at its end; else empty."""
    outcome: str = ""
    """Outcome of a run that is over: COMPLETED, STOPPED, FAILED or DIED; empty = not known."""
    stopped_by: str = ""
    """Who or what stopped it, as `uid 1000` or `SIGTERM`; empty of another end."""
    advice: str = ""
    """Advice on what to type next for a run that has ended: no daemon is left that could answer."""

    @property
    def label(self) -> str:
        return f"OPENING {self.opening}" if self.opening else self.state.upper()

    @property
    def is_current(self) -> bool:
        """True if the data on the screen is current."""
        return self.state in ("live", "replay") and self.is_caught_up and not self.opening

    @property
    def is_fresh(self) -> bool:
        """True if the screen shows the present: not silent for long, not over, not half received."""
        if self.is_replay:
            return not self.opening
        return self.state in ("live", "slow") and self.is_caught_up

    @property
    def severity(self) -> str | None:
        """Style of the state; None where all is well."""
        return {"slow": "warning", "stale": "critical", "lost": "critical"}.get(self.state)


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
