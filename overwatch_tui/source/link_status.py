"""How the connection to the daemon stands, as the header shows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Link:
    """Filled by the feed once per tick."""

    state: str = "searching"
    """searching, connecting, live, slow, stale, lost, ended; replay for a recorded run."""
    age: float | None = None
    """Seconds since the last heartbeat; None before the first."""
    name: str | None = None
    """Of the run, where it is known."""
    said: str = ""
    """What it waits for and what to do about it, while there is nothing to show."""
    rate: float | None = None
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
    beat_age: float | None = None
    """Seconds since the trainer's loop last showed a sign of life."""
    clients: int | None = None
    commands: bool = True
    """Whether commands can be sent at all."""
    replay_speed: float | None = None

    @property
    def word(self) -> str:
        """What stands in the header."""
        return self.state.upper()

    @property
    def fresh(self) -> bool:
        """Whether what is shown is of now."""
        return self.state in ("live", "replay")

    @property
    def severity(self) -> str | None:
        return {"slow": "warning", "stale": "critical", "lost": "critical"}.get(self.state)
