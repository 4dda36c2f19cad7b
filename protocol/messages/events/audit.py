"""Stream `life`: who asked for what, and what came of it. Never dropped."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from esper_overwatch.protocol.messages.vocabulary import Severity

from .registry import event


@event("command.accepted", "life", keep=1, key=("id",), subjects=64)
@dataclass(kw_only=True)
class CommandAccepted:
    """Audit: who asked for what, when."""

    id: str
    method: str
    params: dict[str, Any]
    client: str
    uid: int | None = None
    pid: int | None = None
    key: str | None = None
    """Of a connection over tcp: the name of the key that authenticated it."""
    reason: str = ""
    """The reason that the client gave."""


@event("command.refused", "life", keep=20)
@dataclass(kw_only=True)
class CommandRefused:
    """Audit: a command that was answered with an error."""

    id: str
    method: str
    code: int
    message: str
    client: str
    uid: int | None = None
    pid: int | None = None
    key: str | None = None
    """Of a connection over tcp: the name of the key that authenticated it."""


@event("command.done", "life", keep=1, key=("id",), subjects=64)
@dataclass(kw_only=True)
class CommandDone:
    """The effect of an accepted command has taken place."""

    id: str
    method: str
    result: dict[str, Any]
    seconds: float


@event("command.failed", "life", keep=1, key=("id",), subjects=64)
@dataclass(kw_only=True)
class CommandFailed:
    """An accepted command could not be carried out."""

    id: str
    method: str
    kind: str
    message: str


@event("command.progress", "life", keep=1, key=("id",), subjects=64)
@dataclass(kw_only=True)
class CommandProgress:
    """How far a command is that takes longer than to the next boundary."""

    id: str
    method: str
    done: int
    total: int
    """Epochs, like `done`."""


@event("param.changed", "life", keep=1, key=("key",), subjects=64)
@dataclass(kw_only=True)
class ParamChanged:
    """A parameter has another value from now on."""

    key: str
    old: float
    new: float
    by: str
    """The client that asked, or `resume` where a checkpoint brought the value back."""
    uid: int | None = None
    pid: int | None = None
    command: str | None = None


@event("mark", "life", keep=100)
@dataclass(kw_only=True)
class Mark:
    """A note that somebody made on the timeline."""

    text: str
    client: str
    uid: int | None = None
    pid: int | None = None


@event("anomaly.acknowledged", "life", key=("incident",), subjects=64)
@dataclass(kw_only=True)
class AnomalyAcknowledged:
    """Somebody has seen an incident: until it grows worse, it asks for nobody's attention."""

    source: str
    """Of its worst signal."""
    kind: str
    since: int
    """Wall time at which it began, microseconds."""
    severity: Severity
    """What was seen; a worse one asks again."""
    by: str
    """The client that asked."""
    reason: str = ""
    uid: int | None = None
    pid: int | None = None
    incident: str = ""
    """Its id; empty in journals from before there were incidents."""


@event("anomaly.muted", "life", key=("incident",), subjects=64)
@dataclass(kw_only=True)
class AnomalyMuted:
    """An incident asks for nobody's attention until a time, whatever it does."""

    source: str
    kind: str
    until: int
    """Wall time, microseconds; 0 = no longer muted."""
    by: str
    """The client that asked."""
    reason: str = ""
    uid: int | None = None
    pid: int | None = None
    incident: str = ""
    """Its id, likewise."""


def lease_fingerprint(token: str) -> str:
    """Begin of the SHA-256 of a lease, by which its holder knows it in the events; "" of no lease."""
    return hashlib.sha256(token.encode()).hexdigest()[:8] if token else ""


@event("lease", "life")
@dataclass(kw_only=True)
class Lease:
    """Who alone may command, from now on."""

    state: Literal["acquired", "renewed", "released", "broken", "expired"]
    holder: str
    note: str = ""
    until: int = 0
    """Wall time of its end, microseconds."""
    by: str = ""
    """Who broke it."""
    fingerprint: str = ""
    """First 8 hexadecimal digits of the SHA-256 of what `lease.acquire` gave its holder."""
