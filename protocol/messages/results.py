"""Types of results: the `result` of a query, and of a command's `command.done`.

Fields are added, never taken away; a field with a default may be absent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from esper_overwatch.protocol.messages.thresholds import Threshold
from esper_overwatch.protocol.messages.vocabulary import Level, RunKindName, RunState, Stream

from .roles import Role


class MethodResult(Struct, frozen=True, kw_only=True):
    """An empty object, and what all results are made from."""


class Accepted(MethodResult, frozen=True):
    """What every command is answered with at once.

    A command that needs no trainer is `done`, and the fields of its result stand beside `state`.
    """

    state: Literal["accepted", "done"]
    note: Annotated[str, Meta(description="why the effect will be long in coming")] = ""


class MethodInfo(Struct, frozen=True):
    """One method as `hello` lists it."""

    socket: Literal["qry", "ctl"]
    role: Annotated[Role, Meta(description="the least role that may")]
    states: Annotated[list[RunState], Meta(description="of the run, that allow it")]
    effect: str


class Limits(Struct, frozen=True):
    """Sizes that a client may meet."""

    request_bytes: Annotated[int, Meta(description="of a request's frame; over it: `too_large`")]
    batch_events: Annotated[int, Meta(description="lines of a published message, at most")]
    batch_bytes: Annotated[int, Meta(description="of its third frame, unless one line alone is longer")]
    replay_bytes: Annotated[int, Meta(description="of an answer to `replay`, about; `more` says it was cut")]
    ring_events: Annotated[int, Meta(description="of each stream, kept in memory for `replay`")]
    queues: Annotated[dict[Stream, int], Meta(description="events of a stream that may wait to be sent")]
    mailbox: Annotated[int, Meta(description="commands that may wait for the epoch's end, or for the loop")]
    remembered_s: Annotated[float, Meta(description="seconds for which an answer is kept for a repeat")]


class Endpoints(Struct, frozen=True):
    """Where the three sockets are, by transport: `ev`, `qry` and `ctl` of each."""

    ipc: Annotated[dict[str, str], Meta(description="Unix sockets, for the daemon's own machine")]
    tcp: Annotated[
        dict[str, str] | None, Meta(description="null: a gateway has the ports; versions up to 0.2 had them")
    ] = None


class LoopParameter(Struct, frozen=True):
    type: Literal["bool", "int", "float", "str"]
    default: Any = None
    enum: Annotated[list[Any] | None, Meta(description="the values that are taken")] = None


class LoopCommand(Struct, frozen=True):
    """A command that a published run's own loop has registered; it is a method of `ctl`."""

    help: str
    parameters: dict[str, LoopParameter]


class HelloResult(MethodResult, frozen=True):
    """Who answers, and what a client has to know of it; of a published run also what `status` has of it."""

    protocol: Annotated[int, Meta(description="version of the protocol, 1")]
    version: Annotated[str, Meta(description="of the package")]
    run: Annotated[str, Meta(description="id of the run, 8 hex digits")]
    name: str
    boot: Annotated[str, Meta(description="new at each start of the daemon, 8 hex digits")]
    pid: int
    started: Annotated[int, Meta(description="when this boot began, microseconds")]
    state: RunState
    schema: Annotated[
        str, Meta(description="BLAKE2b of `schema.json`, 8 bytes in hex: changes with the types")
    ]
    streams: list[Stream]
    events: Annotated[dict[str, int], Meta(description="every type of event, with its `tv`")]
    methods: dict[str, MethodInfo]
    thresholds: Annotated[
        dict[str, Threshold], Meta(description="what displays colour by and checks raise by")
    ]
    limits: Limits
    endpoints: Endpoints
    task: Annotated[str | None, Meta(description="data set that a trainer learns")] = None
    config: Annotated[dict[str, Any] | None, Meta(description="of a trainer, as `config.json` has it")] = None
    execution: Annotated[dict[str, Any] | None, Meta(description="what a trainer measured and chose")] = None
    kind: Annotated[RunKindName, Meta(description="a training, or a loop that publishes by itself")] = (
        "training"
    )
    step: Annotated[int | None, Meta(description="newest step of a published run")] = None
    tags: Annotated[list[str] | None, Meta(description="of a published run")] = None
    notes: Annotated[str | None, Meta(description="of a published run")] = None
    commands: Annotated[
        dict[str, LoopCommand] | None, Meta(description="that a published run's loop takes")
    ] = None


class LeaseHolder(Struct, frozen=True):
    holder: str
    note: str
    until: Annotated[int, Meta(description="when it ends by itself, microseconds")]


class ConnectionLimits(Struct, frozen=True):
    connections: Annotated[int, Meta(description="over the three ports together")]
    unproven: Annotated[int, Meta(description="of them without a message yet")]
    per_key: int


class ListenStatus(Struct, frozen=True):
    address: Annotated[str, Meta(description="`tcp://HOST:PORT`, the first of three ports")]
    authorized: Annotated[int, Meta(description="keys in the allow-list")]
    denied: Annotated[int, Meta(description="handshakes that failed or were refused, since the boot")]
    connections: Annotated[int, Meta(description="open now")]
    unproven: Annotated[int, Meta(description="of them without a message yet")]
    closed: Annotated[int, Meta(description="closed for a limit, since the boot")]
    limits: ConnectionLimits


class MetricsStatus(Struct, frozen=True):
    address: Annotated[str, Meta(description="where Prometheus may read the run")]


class SegmentStatus(Struct, frozen=True):
    closed: int
    compressed_bytes: int
    not_compressed: int
    error: Annotated[str | None, Meta(description="why compressing failed last")]


class JournalStatus(Struct, frozen=True):
    path: str
    bytes: Annotated[int, Meta(description="of the open segment")]
    waiting_bytes: Annotated[int, Meta(description="in memory, while the disk refuses")]
    errors: int
    error: Annotated[str | None, Meta(description="why the disk refuses at present")]
    lost: Annotated[int, Meta(description="events that found no room in memory either")]
    cut_bytes: Annotated[int, Meta(description="of a torn last line, cut off at the start")]
    segments: SegmentStatus


class RequestCounts(Struct, frozen=True):
    requests: Annotated[int, Meta(description="messages on `qry` and `ctl` since the boot")]
    junk: Annotated[int, Meta(description="of them not requests")]
    too_often: Annotated[int, Meta(description="of them over the rate")]
    unanswered: Annotated[int, Meta(description="answers that could not be delivered")]
    unread_bytes: Annotated[int, Meta(description="of large answers that wait to be read now")]


class WireStatus(Struct, frozen=True):
    errors: Annotated[dict[str, int], Meta(description="failures of the I/O thread by step, since the boot")]
    failing: Annotated[dict[str, str], Meta(description="steps that fail at present, and why")]
    sockets_restored: Annotated[int, Meta(description="Unix sockets bound again after their files vanished")]


class StatusResult(MethodResult, frozen=True):
    """How the run, its daemon and its wire are."""

    run: str
    name: str
    boot: str
    pid: int
    state: RunState
    round: int
    epoch: int
    beat_age_ms: Annotated[int, Meta(description="since the trainer's last sign of life")]
    uptime_s: float
    task: str | None
    envs: int | None
    rounds: Annotated[int | None, Meta(description="after which the run ends; 0 = it does not")]
    device: str | None
    level: Level
    clients: Annotated[int, Meta(description="subscriptions to `1/hb`")]
    endpoints: Endpoints
    listen: Annotated[ListenStatus | None, Meta(description="null: see `endpoints.tcp`")]
    metrics: Annotated[MetricsStatus | None, Meta(description="null = not served")]
    commands_waiting: Annotated[int, Meta(description="for the epoch's end, or for the loop")]
    lease: LeaseHolder | None
    seq: Annotated[dict[Stream, int], Meta(description="newest number of each stream")]
    queued: Annotated[dict[Stream, int], Meta(description="events that wait to be written and sent")]
    dropped: Annotated[dict[Stream, int], Meta(description="events refused by a full queue, since the boot")]
    unencodable: Annotated[int, Meta(description="events left out: JSON cannot say what they hold")]
    journal: JournalStatus
    control: RequestCounts
    wire: WireStatus
    kind: Annotated[RunKindName, Meta(description="a training, or a loop that publishes by itself")] = (
        "training"
    )
    step: Annotated[int | None, Meta(description="newest step of a published run")] = None
    tags: Annotated[list[str] | None, Meta(description="of a published run")] = None
    notes: Annotated[str | None, Meta(description="of a published run")] = None
    commands: Annotated[
        dict[str, LoopCommand] | None, Meta(description="that a published run's loop takes")
    ] = None
    unaudited: Annotated[int, Meta(description="refused commands left out of the audit, since the boot")] = 0


class SnapshotResult(MethodResult, frozen=True):
    """The lines are the reply's second frame, which is empty where `n` is 0."""

    boot: str
    seq: Annotated[dict[Stream, int], Meta(description="per stream asked for: the number it reaches to")]
    n: Annotated[int, Meta(description="lines; in the order in which they came, of all streams")]


class ReplayResult(MethodResult, frozen=True):
    """The lines `first`..`last` are the reply's second frame, which is empty where `n` is 0."""

    stream: Stream
    first: Annotated[int, Meta(description="as asked")]
    last: Annotated[
        int, Meta(description="number of the last line here; `first` - 1 where there is none yet")
    ]
    n: int
    more: Annotated[bool, Meta(description="the answer was full: ask again from `last` + 1")]


class HistoryResult(MethodResult, frozen=True):
    """The lines are the reply's second frame, in the order of their numbers; it is empty where `n` is 0."""

    stream: Stream
    first: Annotated[int, Meta(description="lowest number that was looked at: go on with `before` = `first`")]
    n: int
    more: Annotated[bool, Meta(description="there are lower numbers")]


class SchemaResult(MethodResult, frozen=True):
    """JSON Schema, 2020-12; the same as `schema.json`."""

    dialect: str = field(name="$schema")
    title: str
    events: Annotated[dict[str, Any], Meta(description="of `data`, by type")]
    requests: Annotated[dict[str, Any], Meta(description="of `params`, by method")]
    results: Annotated[dict[str, Any], Meta(description="of `result`, by method")]
    accepted: Annotated[dict[str, Any], Meta(description="of what a command is answered with at once")]
    frames: Annotated[dict[str, Any], Meta(description="of whole frames and headers, by name")]
    definitions: Annotated[dict[str, Any], Meta(description="what `$ref` refers to")] = field(name="$defs")


class ParameterInfo(Struct, frozen=True):
    value: Annotated[float, Meta(description="in force, or to be at the next boundary")]
    configured: Annotated[float, Meta(description="what the configuration says")]
    allowed: Annotated[str, Meta(description="its bounds, in words")]
    description: str
    takes_effect: Annotated[
        Literal["epoch", "update", "round"], Meta(description="boundary from which a change is in force")
    ]


class ParamGetResult(MethodResult, frozen=True):
    """The parameters that can be changed while the run trains."""

    params: Annotated[dict[str, ParameterInfo], Meta(description="by the key for `param.set`")]


class CommandFailure(Struct, frozen=True):
    kind: str
    message: str


class OpGetResult(MethodResult, frozen=True):
    """One command of this boot."""

    op: Annotated[str, Meta(description="id of its request")]
    method: str
    params: dict[str, Any] | None
    client: str | None
    uid: int | None
    pid: int | None
    accepted: Annotated[int, Meta(description="when, microseconds")]
    state: Annotated[
        Literal["waiting", "running", "done", "failed", "cancelled"],
        Meta(description="waiting for its boundary, running over several epochs, or ended"),
    ]
    done: Annotated[int, Meta(description="epochs of `total`")]
    total: Annotated[int, Meta(description="0 where there is no progress to report")]
    ended: Annotated[int | None, Meta(description="when, microseconds")]
    result: Annotated[dict[str, Any] | None, Meta(description="once it is done: the result of its method")]
    error: Annotated[CommandFailure | None, Meta(description="once it has failed")]
    key: Annotated[str | None, Meta(description="name of the key of who sent it over TCP")] = None


class OpListResult(MethodResult, frozen=True):
    """Commands of this boot."""

    ops: Annotated[list[OpGetResult], Meta(description="the newest 256 that ended, then the open ones")]


class ClientInfo(Struct, frozen=True):
    client: Annotated[str, Meta(description="as it calls itself, unchecked: clean it before printing")]
    uid: Annotated[int | None, Meta(description="from the kernel, on Unix sockets")]
    pid: int | None
    key: Annotated[str | None, Meta(description="name of its key, over TCP")]
    role: Role | None
    first: Annotated[int, Meta(description="its first request, microseconds")]
    last: int
    requests: int
    refused: Annotated[int, Meta(description="over the rate")]
    connections: int


class ClientsResult(MethodResult, frozen=True):
    """Who has asked, summed up by name and process or key."""

    clients: Annotated[
        list[ClientInfo], Meta(description="the newest asker first; 1,024 connections at most")
    ]
    subscribers: Annotated[int, Meta(description="subscriptions to `1/hb`")]


class ThreadStack(Struct, frozen=True):
    """A thread at one moment."""

    id: Annotated[int, Meta(description="of the system; names may not differ")]
    name: str
    cpu_us: Annotated[int, Meta(description="CPU time that it has had, in microseconds")]
    frames: Annotated[
        list[str],
        Meta(description="`FILE:LINE FUNCTION`, the outermost first; the 64 innermost at most"),
    ]


class StacksResult(MethodResult, frozen=True):
    """What every thread is doing at this moment."""

    threads: Annotated[list[ThreadStack], Meta(description="the main one first")]


class ClockResult(MethodResult, frozen=True):
    """The boundary at which it happened."""

    round: int
    epoch: Annotated[int, Meta(description="finished in this round")]


class CheckpointResult(MethodResult, frozen=True):
    """The file."""

    path: str
    bytes: int


class StoppedResult(MethodResult, frozen=True):
    """That it has stopped."""

    stopped: bool


class EscalateResult(MethodResult, frozen=True):
    """At the end of the last epoch asked for."""

    collected: Annotated[Level | None, Meta(description="what was asked for")] = None
    epochs: Annotated[int, Meta(description="for which it was collected")] = 0
    until: Annotated[str, Meta(description="the last of them, as `round 3 epoch 12`")] = ""
    level_after: Annotated[Level | None, Meta(description="in force now that it is over")] = None
    level: Annotated[Level | None, Meta(description="`level_after` up to 0.2.0, no longer sent")] = None


class ProfileResult(MethodResult, frozen=True):
    """As in the event `profiler.finished`."""

    path: str
    bytes: int
    epochs: int
    top: list[dict[str, Any]]
    gpu_utilisation: float | None = None
    kernels: int | None = None
    allocator_seconds: float | None = None
    python_share: float | None = None


class ParamSetResult(MethodResult, frozen=True):
    """The change."""

    key: str
    old: float
    new: float


class SeedResult(MethodResult, frozen=True):
    """The slot."""

    env: int
    slot: str
    stage: Annotated[str, Meta(description="of the slot afterwards")]


class OpCancelResult(MethodResult, frozen=True):
    """The other command."""

    op: Annotated[str, Meta(description="id of the command that is cancelled")]


class MuteResult(MethodResult, frozen=True):
    """Until when the incident is muted."""

    until: Annotated[int, Meta(description="wall time, microseconds; 0 = it no longer is")]


class RotateResult(MethodResult, frozen=True):
    """What was closed."""

    bytes: Annotated[int, Meta(description="of the segment that was closed")]


class LeaseAcquireResult(MethodResult, frozen=True):
    """The lease."""

    until: Annotated[int, Meta(description="when it ends by itself, microseconds")]
    lease: Annotated[
        str, Meta(description="goes into `meta.lease` of each command; a secret, in the reply alone")
    ] = ""


class LeaseReleaseResult(MethodResult, frozen=True):
    """Whether there was one."""

    released: Annotated[bool, Meta(description="false where nobody held it")]
