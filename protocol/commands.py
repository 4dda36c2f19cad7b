"""Every request and reply, as types: JSON-RPC 2.0 with a deadline and an expected boot.

One row of `METHODS` says all about a method: its socket, its parameters, the run states that allow it and
the event that shows its effect. Requests are decoded strictly: unknown fields and values out of range are
refused with the path of the field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from .events import STREAMS, Level

RunState = Literal["STARTING", "TRAINING", "PAUSED", "STOPPING"]
RUN_STATES: tuple[RunState, ...] = ("STARTING", "TRAINING", "PAUSED", "STOPPING")
Socket = Literal["qry", "ctl"]


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a method; the empty ones are this class itself."""


class SnapshotParams(Params, frozen=True):
    streams: Annotated[
        tuple[Literal["life", "metric", "trace", "log"], ...], Meta(description="only these streams")
    ] = STREAMS


class ReplayParams(Params, frozen=True):
    stream: Annotated[Literal["life", "metric", "trace", "log"], Meta(description="of this stream")]
    first: Annotated[int, Meta(ge=1, description="first sequence number wanted")]
    last: Annotated[int, Meta(ge=1, description="last sequence number wanted")]


class CheckpointParams(Params, frozen=True):
    tag: Annotated[
        str, Meta(max_length=32, pattern=r"^[A-Za-z0-9_.-]*$(?!\n)", description="part of the file's name")
    ] = ""


class StopParams(Params, frozen=True):
    mode: Annotated[
        Literal["after_epoch", "after_round"], Meta(description="at which boundary the run ends")
    ] = "after_epoch"
    checkpoint: Annotated[bool, Meta(description="save a checkpoint first")] = True


class EscalateParams(Params, frozen=True):
    level: Annotated[Level, Meta(description="telemetry level for the epochs asked for")] = "DEBUG"
    epochs: Annotated[int, Meta(ge=1, le=10_000, description="for exactly so many epochs")] = 5
    env: Annotated[int | None, Meta(description="only this env; null for all")] = None


class ProfilerStartParams(Params, frozen=True):
    epochs: Annotated[int, Meta(ge=1, le=100, description="epochs to record")] = 2
    with_update: Annotated[
        bool, Meta(description="wait for a round's last epochs and record its PPO update, too")
    ] = False


class Method(Struct, frozen=True, kw_only=True):
    """What the server and the reference page know of a method."""

    name: str
    socket: Socket
    params: type[Params] = Params
    states: tuple[RunState, ...] = RUN_STATES
    effect: str = ""
    """What happens, and the event that shows it."""
    refused: str = ""
    """What to tell who asks in a state that does not allow it."""


_ACTIVE: tuple[RunState, ...] = ("STARTING", "TRAINING", "PAUSED")

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(name="hello", socket="qry", effect="identity, state, thresholds, limits"),
        Method(name="ping", socket="qry", effect="an empty answer"),
        Method(name="status", socket="qry", effect="state, clock, beat, queues, clients"),
        Method(name="snapshot", socket="qry", params=SnapshotParams,
               effect="the newest events, as a second frame of NDJSON"),
        Method(name="replay", socket="qry", params=ReplayParams, effect="a range of events, as NDJSON"),
        Method(name="schema", socket="qry", effect="JSON Schema of all events and requests"),
        Method(name="pause", socket="ctl", states=("STARTING", "TRAINING"), effect="run.state PAUSED",
               refused="it is paused already"),
        Method(name="resume", socket="ctl", states=("PAUSED",), effect="run.state TRAINING",
               refused="it is not paused"),
        Method(name="checkpoint", socket="ctl", params=CheckpointParams, states=_ACTIVE,
               effect="checkpoint.saved"),
        Method(name="stop", socket="ctl", params=StopParams, states=_ACTIVE, effect="run.state STOPPING"),
        Method(name="telemetry.escalate", socket="ctl", params=EscalateParams, states=_ACTIVE,
               effect="telemetry.level"),
        Method(name="profiler.start", socket="ctl", params=ProfilerStartParams,
               states=("STARTING", "TRAINING"), effect="profiler.started, then profiler.finished",
               refused="no epochs run while it is paused; resume first"),
        Method(name="profiler.stop", socket="ctl", states=_ACTIVE, effect="profiler.finished"),
    )
}  # fmt: skip


class Expect(Struct, frozen=True):
    """Conditions under which the request is to be carried out at all."""

    boot: str | None = None
    state: RunState | None = None


class RequestMeta(Struct, frozen=True):
    v: int = 1
    expect: Expect = Expect()
    deadline: int | None = None
    """Wall time of the daemon in microseconds after which the request must not be carried out."""
    client: Annotated[str, Meta(max_length=64)] = ""
    reason: Annotated[str, Meta(max_length=256)] = ""


class Request(Struct, frozen=True):
    """One request; `id` is made by the client and is also the key for de-duplication."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    method: str
    params: dict[str, Any] = field(default_factory=dict)
    meta: RequestMeta = RequestMeta()
    jsonrpc: Literal["2.0"] = "2.0"


class ErrorBody(Struct, frozen=True):
    code: int
    message: str
    data: dict[str, Any] = field(default_factory=dict)


class ReplyMeta(Struct, frozen=True):
    boot: str
    ts: int
    replayed: bool = False
    """True where the answer is the stored one of an earlier request with the same id."""


class Reply(Struct, frozen=True):
    """Exactly one of `result` and `error` is on the wire; `id` is null where the request had none to read."""

    id: str | None
    meta: ReplyMeta
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None
    jsonrpc: str = "2.0"
