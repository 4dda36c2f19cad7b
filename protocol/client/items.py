"""Items that a subscriber hands out beside events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import RequestError

LinkState = Literal["searching", "connecting", "live", "slow", "stale", "lost", "ended"]


@dataclass(frozen=True)
class Reset:
    """The reader drops what it knew: all that is known follows. Comes before every snapshot."""

    reason: str


@dataclass(frozen=True)
class LinkChanged:
    """The link entered a state."""

    state: LinkState


@dataclass(frozen=True)
class RequestOutcome:
    """The answer to a `request`; exactly one of `result` and `error` is set."""

    id: str
    method: str
    result: dict[str, Any] | None
    error: RequestError | None
    """Has the kind `no_reply` where the deadline passed without an answer."""
    rtt_seconds: float
    lines: tuple[bytes, ...] = ()
    """The answer's second frame, where it has one."""


Item = Reset | Event | RequestOutcome | LinkChanged


@dataclass
class Stats:
    """Counters since the subscriber was made."""

    events: int = 0
    bytes: int = 0
    gaps: int = 0
    """Holes found."""
    repaired: int = 0
    """Events that a replay, or the journal of a daemon that is gone, brought."""
    skipped: int = 0
    """Events passed over because the reader was too far behind or they are no longer held."""
    bad: int = 0
    """Frames and lines that were not understood."""
    last_bad: str = ""
