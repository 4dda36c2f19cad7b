"""Messages published beside the events: the heartbeat, and the headers of a batch and of a view."""

from __future__ import annotations

from msgspec import Struct


class TrainerBeat(Struct, frozen=True):
    """What the trainer last said of itself; the age tells a hung trainer from a living I/O thread."""

    state: str
    """STARTING, TRAINING, PAUSED or STOPPING."""
    round: int
    epoch: int
    beat_age_ms: int
    """Milliseconds since its last sign of life; it gives one per epoch."""


class Heartbeat(Struct, frozen=True):
    """Body of a heartbeat; sent each second and once more as the daemon's last word."""

    v: int
    run: str
    boot: str
    ts: int
    """When it was sent, microseconds."""
    last: dict[str, int]
    """The newest sequence number per stream: what makes a lost tail visible."""
    dropped: dict[str, int]
    """Events refused since the boot because a queue was full, per stream."""
    trainer: TrainerBeat
    clients: int
    """Subscribers to the heartbeat."""
    bye: str | None = None
    """Why the daemon leaves; null while it lives."""


class BatchHeader(Struct, frozen=True):
    """Second frame of a batch; its body holds the lines `first`..`last` without a hole."""

    v: int
    run: str
    boot: str
    stream: str
    first: int
    """Number of the body's first line."""
    last: int
    n: int
    """Lines: `last` - `first` + 1."""
    ts: int
    """When it was sent, microseconds."""
    dropped: int
    """Events of this stream refused by its full queue since the boot; they took no number."""


class Window(Struct, frozen=True):
    """The events of a type that have come since the view before: of each field that is a number, its span.

    What is not finite is left out; a field without a value that is left has no entry.
    """

    n: int
    min: dict[str, float]
    mean: dict[str, float]
    max: dict[str, float]


class ViewHeader(Struct, frozen=True):
    """Second frame of a view; its body holds `n` lines of the stream `metric`, the newest of their types."""

    v: int
    run: str
    boot: str
    ts: int
    n: int
    windows: dict[str, Window] = {}
    """By type, of those of which more than one has come since the view before."""
