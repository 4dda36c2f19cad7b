"""Every request and reply, as types: JSON-RPC 2.0 with a deadline and an expected boot.

One row of `METHODS` defines a method: its socket, its parameters, its result, the run states that allow it
and the event that shows its effect. Requests are decoded strictly: unknown fields and values out of range are
refused with the path of the field.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from esper_overwatch.protocol.messages.vocabulary import (
    STREAMS,
    AlphaSpeed,
    Level,
    RunState,
    Severity,
    Stream,
    StyleName,
    Tempo,
)

from .results import (
    CheckpointResult,
    ClientsResult,
    ClockResult,
    EscalateResult,
    HelloResult,
    HistoryResult,
    LeaseAcquireResult,
    LeaseReleaseResult,
    MethodResult,
    MuteResult,
    OpCancelResult,
    OpGetResult,
    OpListResult,
    ParamGetResult,
    ParamSetResult,
    ProfileResult,
    ReplayResult,
    RotateResult,
    SchemaResult,
    SeedResult,
    SnapshotResult,
    StacksResult,
    StatusResult,
    StoppedResult,
)
from .roles import Role

RUN_STATES: tuple[RunState, ...] = get_args(RunState)
Socket = Literal["qry", "ctl"]


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a method; the empty ones are this class itself."""


class SnapshotParams(Params, frozen=True):
    streams: Annotated[tuple[Stream, ...], Meta(description="only these streams")] = STREAMS


class ReplayParams(Params, frozen=True):
    stream: Annotated[Stream, Meta(description="of this stream")]
    first: Annotated[int, Meta(ge=1, description="first sequence number wanted")]
    last: Annotated[int, Meta(ge=1, description="last sequence number wanted")]


class HistoryParams(Params, frozen=True):
    stream: Annotated[Stream, Meta(description="of this stream")]
    before: Annotated[int, Meta(ge=0, description="only numbers below this one; 0 = from the newest on")] = 0
    types: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(max_length=16, description="only these types of events; empty = all"),
    ] = ()
    interval: Annotated[
        float, Meta(ge=0, le=3600, description="of each type and subject one event per so many seconds")
    ] = 0.0
    bytes: Annotated[
        int, Meta(ge=1, le=1_048_576, description="of lines; at least one line, however long")
    ] = 262_144


class CheckpointParams(Params, frozen=True):
    tag: Annotated[
        str,
        Meta(
            max_length=32,
            pattern=r"^[A-Za-z0-9_.-]*$(?!\n)",
            description="part of the file's name: letters of ASCII, digits, `-`, `_` and `.`",
        ),
    ] = ""


class StopParams(Params, frozen=True):
    mode: Annotated[
        Literal["after_epoch", "after_round"], Meta(description="at which boundary the run ends")
    ] = "after_epoch"
    checkpoint: Annotated[bool, Meta(description="save a checkpoint first")] = True


class EscalateParams(Params, frozen=True):
    level: Annotated[
        Level, Meta(description="for the epochs asked for; above what the run collects all the time")
    ] = "DEBUG"
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


_Incident = Annotated[str, Meta(max_length=64, description="the incident's id")]
_Source = Annotated[
    str, Meta(max_length=64, description="in place of the id: of an anomaly in it, such as `env07`")
]
_Kind = Annotated[str, Meta(max_length=64, description="its kind, such as `norm_drift`")]


class AcknowledgeParams(Params, frozen=True):
    incident: _Incident = ""
    source: _Source = ""
    kind: _Kind = ""
    since: Annotated[int, Meta(ge=0, description="of no use any more: an id names one incident")] = 0
    severity: Annotated[Severity, Meta(description="what was seen; a worse one asks again")] = "critical"


class MuteParams(Params, frozen=True):
    incident: _Incident = ""
    source: _Source = ""
    kind: _Kind = ""
    seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="from now on; 0 ends a mute that is in force")
    ] = 600.0


_EnvIndex = Annotated[int, Meta(ge=0, description="of this env")]
_SlotName = Annotated[str, Meta(max_length=16, description="the slot's name, as `run.started` lists them")]


class SeedGerminateParams(Params, frozen=True):
    env: _EnvIndex
    slot: _SlotName
    blueprint: Annotated[str, Meta(max_length=64, description="one of the run's blueprints")]
    style: Annotated[StyleName, Meta(description="how its output will meet the host's")] = "ADD"
    tempo: Annotated[Tempo, Meta(description="epochs of the blend that follows its training")] = 5


class SeedPruneParams(Params, frozen=True):
    env: _EnvIndex
    slot: _SlotName
    epochs: Annotated[AlphaSpeed, Meta(description="epochs over which a blended seed fades; 0 = at once")] = 0


class OpParams(Params, frozen=True):
    op: Annotated[str, Meta(min_length=1, max_length=64, description="id of the command")]


class LeaseAcquireParams(Params, frozen=True):
    ttl: Annotated[float, Meta(ge=1, le=3600, description="seconds until it ends by itself")] = 60.0
    note: Annotated[str, Meta(max_length=128, description="what it is for, told to who is refused")] = ""


class LeaseReleaseParams(Params, frozen=True):
    force: Annotated[bool, Meta(description="end it although it is another's")] = False


class Method(Struct, frozen=True):
    """One method: the server checks requests by it, the reference page lists it."""

    name: str
    effect: str = ""
    """What happens, and the event that shows it."""
    params: type[Params] = Params
    result: type[MethodResult] = MethodResult
    """Of a query, in its answer; of a command, in its `command.done`."""
    socket: Socket = "ctl"
    role: Role | None = None
    """Who may; None = a viewer on `qry`, an operator on `ctl`."""
    states: tuple[RunState, ...] = RUN_STATES
    at: Literal["once", "epoch"] = "epoch"
    """Of a command: executed at once by the daemon's I/O thread, or by the trainer between two epochs."""
    needs_lease: bool = True
    """Of a command: refused while another client holds the lease."""
    refused: str = ""
    """The message of the error in a state that does not allow it."""

    @property
    def need(self) -> Role:
        """The least role that may."""
        return self.role or ("viewer" if self.socket == "qry" else "operator")


_ACTIVE: tuple[RunState, ...] = ("STARTING", "TRAINING", "PAUSED")
_NOT_PAUSED: tuple[RunState, ...] = ("STARTING", "TRAINING")
_query = partial(Method, socket="qry")
_command = partial(Method, states=_ACTIVE)
"""One that the trainer executes between two epochs."""
_immediate = partial(Method, at="once")
"""One that the daemon's I/O thread executes at once."""

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _query("hello", "identity, state, thresholds, limits", result=HelloResult),
        _query("ping", "an empty answer"),
        _query("status", "state, clock, beat, queues, clients", result=StatusResult),
        _query(
            "snapshot",
            "the newest events, as a second frame of NDJSON",
            SnapshotParams,
            result=SnapshotResult,
        ),
        _query("replay", "a range of events, as NDJSON", ReplayParams, result=ReplayResult),
        _query(
            "history",
            "earlier events, the newest first to be asked for, thinned, as NDJSON",
            HistoryParams,
            result=HistoryResult,
        ),
        _query("schema", "JSON Schema of all events, requests and results", result=SchemaResult),
        _query("param.get", "what `param.set` may change: values, bounds, meaning", result=ParamGetResult),
        _query("op.get", "one command: who, state, result", OpParams, result=OpGetResult),
        _query("op.list", "the open commands and the newest ended ones", result=OpListResult),
        _query("clients", "who has asked lately: identity, name, how often", result=ClientsResult),
        _query("stacks", "what every thread of the process is doing now", result=StacksResult),
        _command(
            "pause",
            "run.state PAUSED",
            states=_NOT_PAUSED,
            refused="it is paused already",
            result=ClockResult,
        ),
        _command(
            "resume", "run.state TRAINING", states=("PAUSED",), refused="it is not paused", result=ClockResult
        ),
        _command("checkpoint", "checkpoint.saved", CheckpointParams, result=CheckpointResult),
        _command("stop", "run.state STOPPING", StopParams, result=StoppedResult),
        _command("telemetry.escalate", "telemetry.level", EscalateParams, result=EscalateResult),
        _command(
            "profiler.start",
            "profiler.started, then profiler.finished",
            ProfilerStartParams,
            states=_NOT_PAUSED,
            refused="no epochs run while it is paused; resume first",
            result=ProfileResult,
        ),
        _command("profiler.stop", "profiler.finished", result=StoppedResult),
        _command("param.set", "param.changed", ParamSetParams, result=ParamSetResult),
        _command("seed.germinate", "seed.stage GERMINATED", SeedGerminateParams, result=SeedResult),
        _command(
            "seed.prune", "seed.stage PRUNED, or BLENDING down to it", SeedPruneParams, result=SeedResult
        ),
        _command("op.cancel", "command.failed `cancelled` of that command", OpParams, result=OpCancelResult),
        _immediate("mark", "mark", MarkParams),
        _immediate("anomaly.acknowledge", "anomaly.acknowledged", AcknowledgeParams, needs_lease=False),
        _immediate("anomaly.mute", "anomaly.muted", MuteParams, needs_lease=False, result=MuteResult),
        _immediate("log.rotate", "the journal begins a new segment", role="admin", result=RotateResult),
        _immediate(
            "lease.acquire",
            "lease acquired; commands without it are refused",
            LeaseAcquireParams,
            states=_ACTIVE,
            result=LeaseAcquireResult,
        ),
        _immediate(
            "lease.release",
            "lease released",
            LeaseReleaseParams,
            needs_lease=False,
            result=LeaseReleaseResult,
        ),
    )
}
"""Every method by name, as the reference page lists them."""


class Expect(Struct, frozen=True):
    """Conditions under which the request is to be carried out at all."""

    boot: str | None = None
    """Only by this boot; else `boot_mismatch`."""
    state: RunState | None = None
    """Only in this state of the run; else `wrong_state`."""


class RequestMeta(Struct, frozen=True):
    v: int = 1
    """Version of the protocol; else `version`."""
    expect: Expect = Expect()
    deadline: int | None = None
    """Wall time of the daemon in microseconds, at most a day ahead, after which it must not be executed."""
    client: Annotated[str, Meta(max_length=64)] = ""
    """How the sender calls itself, for the audit events."""
    reason: Annotated[str, Meta(max_length=256)] = ""
    """Why, for the audit events."""
    lease: Annotated[str, Meta(max_length=64)] = ""
    """What `lease.acquire` gave: while a lease is held, commands without it are refused."""


class Request(Struct, frozen=True):
    """One request; `id` is made by the client and is also the key for de-duplication."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    """1 to 64 characters, new for each request, the same for its repeats."""
    method: str
    params: dict[str, Any] = field(default_factory=dict)
    meta: RequestMeta = RequestMeta()
    jsonrpc: Literal["2.0"] = "2.0"


class ErrorBody(Struct, frozen=True):
    code: int
    message: str
    """For people, one line."""
    data: dict[str, Any] = field(default_factory=dict)
    """`kind`, `retryable`, and what else the kind has."""


class ReplyMeta(Struct, frozen=True):
    boot: str
    ts: int
    """When it was made, on the daemon's clock, microseconds."""
    replayed: bool = False
    """True where the answer is the stored one of an earlier request with the same id."""


class Reply(Struct, frozen=True):
    """Exactly one of `result` and `error` is on the wire; `id` is null where the request had none to read."""

    id: str | None
    meta: ReplyMeta
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None
    jsonrpc: str = "2.0"
