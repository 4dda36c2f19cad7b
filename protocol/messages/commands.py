"""Every request and reply, as types: JSON-RPC 2.0 with a deadline and an expected boot.

One row of `METHODS` says all about a method: its socket, its parameters, the run states that allow it and
the event that shows its effect. Requests are decoded strictly: unknown fields and values out of range are
refused with the path of the field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from .events import STREAMS, Level
from .peer import Role

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


class ParamSetParams(Params, frozen=True):
    key: Annotated[str, Meta(max_length=64, description="a key that `param.get` lists")]
    value: Annotated[float, Meta(description="within the bounds that `param.get` tells")]


class MarkParams(Params, frozen=True):
    text: Annotated[str, Meta(min_length=1, max_length=256, description="what to note on the timeline")]


_EnvIndex = Annotated[int, Meta(ge=0, description="of this env")]
_SlotName = Annotated[str, Meta(max_length=16, description="the slot's name, as `run.started` lists them")]


class SeedGerminateParams(Params, frozen=True):
    env: _EnvIndex
    slot: _SlotName
    blueprint: Annotated[str, Meta(max_length=64, description="one of the run's blueprints")]
    style: Annotated[
        Literal["ADD", "MULTIPLY", "GATE"], Meta(description="how its output will meet the host's")
    ] = "ADD"
    tempo: Annotated[Literal[3, 5, 8], Meta(description="epochs of the blend that follows its training")] = 5


class SeedPruneParams(Params, frozen=True):
    env: _EnvIndex
    slot: _SlotName
    epochs: Annotated[
        Literal[0, 3, 5, 8], Meta(description="epochs over which a blended seed fades; 0 = at once")
    ] = 0


class OpParams(Params, frozen=True):
    op: Annotated[str, Meta(min_length=1, max_length=64, description="id of the command")]


class LeaseAcquireParams(Params, frozen=True):
    ttl: Annotated[float, Meta(ge=1, le=3600, description="seconds until it ends by itself")] = 60.0
    note: Annotated[str, Meta(max_length=128, description="what it is for, told to who is refused")] = ""


class LeaseReleaseParams(Params, frozen=True):
    force: Annotated[bool, Meta(description="end it although it is another's")] = False


class Method(Struct, frozen=True, kw_only=True):
    """What the server and the reference page know of a method."""

    name: str
    socket: Socket
    params: type[Params] = Params
    role: Role | None = None
    """Who may; None = a viewer on `qry`, an operator on `ctl`."""
    states: tuple[RunState, ...] = RUN_STATES
    at: Literal["once", "epoch"] = "epoch"
    """Of a command: carried out at once by the daemon's I/O thread, or by the trainer between two epochs."""
    effect: str = ""
    """What happens, and the event that shows it."""
    refused: str = ""
    """What to tell who asks in a state that does not allow it."""

    @property
    def need(self) -> Role:
        """The least role that may."""
        return self.role or ("viewer" if self.socket == "qry" else "operator")


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
        Method(name="param.get", socket="qry", effect="what `param.set` may change: values, bounds, meaning"),
        Method(name="op.get", socket="qry", params=OpParams, effect="one command: who, state, result"),
        Method(name="op.list", socket="qry", effect="the open commands and the newest ended ones"),
        Method(name="clients", socket="qry", effect="who has asked lately: identity, name, how often"),
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
        Method(name="param.set", socket="ctl", params=ParamSetParams, states=_ACTIVE, effect="param.changed"),
        Method(name="seed.germinate", socket="ctl", params=SeedGerminateParams, states=_ACTIVE,
               effect="seed.stage GERMINATED"),
        Method(name="seed.prune", socket="ctl", params=SeedPruneParams, states=_ACTIVE,
               effect="seed.stage PRUNED, or BLENDING down to it"),
        Method(name="op.cancel", socket="ctl", params=OpParams, states=_ACTIVE,
               effect="command.failed `cancelled` of that command"),
        Method(name="mark", socket="ctl", params=MarkParams, at="once", effect="mark"),
        Method(name="log.rotate", socket="ctl", role="admin", at="once",
               effect="the journal begins a new segment"),
        Method(name="lease.acquire", socket="ctl", params=LeaseAcquireParams, states=_ACTIVE, at="once",
               effect="lease acquired; commands without it are refused"),
        Method(name="lease.release", socket="ctl", params=LeaseReleaseParams, at="once",
               effect="lease released"),
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
    lease: Annotated[str, Meta(max_length=64)] = ""
    """What `lease.acquire` gave: while a lease is held, commands without it are refused."""


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
