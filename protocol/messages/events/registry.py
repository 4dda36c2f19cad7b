"""Every telemetry event, as types.

An event is a plain dataclass (orjson writes those natively; `slots=True` would make it three times
slower). The decorator gives it its name on the wire, its stream and how many of it a snapshot keeps;
`json_lines.decode_line` reads it back through msgspec, which validates into the same classes.

Conventions: losses are nats, accuracies are fractions 0..1, durations are seconds, sizes are bytes, wall
times are microseconds since the epoch. Per-env data travels as columns: lists of N, or N lists of S
slots. `None` means "not measured"; NaN and infinities are values and travel as strings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from esper_overwatch.protocol.messages.vocabulary import Level, Stream

EventClass: TypeAlias = type[Any]


@dataclass(frozen=True, kw_only=True)
class EventSpec:
    """How an event type is sent and kept."""

    type: str
    stream: Stream
    cls: EventClass
    keep: int
    """How many of the newest a snapshot holds (per key, where there is one); 0 = none, of large ones."""
    key: tuple[str, ...]
    """Fields of ctx or data that distinguish subjects, e.g. ("env", "slot")."""
    subjects: int = 4096
    """How many keys a snapshot holds at most; the one longest unchanged goes first."""
    version: int = 1
    """`tv` on the wire: raised when the meaning of a field changes, which only a new major may do."""


EVENTS: dict[str, EventSpec] = {}
_SPEC_OF: dict[type, EventSpec] = {}
_T = TypeVar("_T")


def event(
    type_: str, stream: Stream, *, keep: int = 1, key: tuple[str, ...] = (), subjects: int = 4096
) -> Callable[[type[_T]], type[_T]]:
    """Register a dataclass as the event `type_` on `stream`."""

    def register(cls: type[_T]) -> type[_T]:
        spec = EventSpec(type=type_, stream=stream, cls=cls, keep=keep, key=key, subjects=subjects)
        assert type_ not in EVENTS, f"two events named {type_}"
        EVENTS[type_] = _SPEC_OF[cls] = spec
        return cls

    return register


def spec_of(cls: type) -> EventSpec:
    """The registration of an event class; KeyError where it has none."""
    return _SPEC_OF[cls]


@dataclass(kw_only=True)
class Context:
    """Where in the run an event belongs; the same clock in every event."""

    round: int = 0
    """Rounds begun, from 1; 0 before the first."""
    epoch: int = 0
    """Epochs finished in this round's episode."""
    level: Level = "NORMAL"
    """Telemetry level in force."""
    env: int | None = None
    """Absent where the event is not about one env."""
    rank: int = 0
    """Which process of the run it comes from; 0 is the one with the journal."""
