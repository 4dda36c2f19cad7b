"""Every telemetry event, as types.

An event is a plain dataclass (orjson writes those natively; `slots=True` would make it three times
slower). The decorator gives it its name on the wire, its stream and how many of it a snapshot keeps;
`wire.decode_line` reads it back through msgspec, which validates into the same classes.

Conventions: losses are nats, accuracies are fractions 0..1, durations are seconds, sizes are bytes, wall
times are microseconds since the epoch. Per-env data travels as columns: lists of N, or N lists of S
slots. `None` means "not measured"; NaN and infinities are values and travel as strings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

Stream = Literal["life", "metric", "trace", "log"]
STREAMS: tuple[Stream, ...] = ("life", "metric", "trace", "log")
Severity = Literal["info", "warning", "critical"]
Level = Literal["OFF", "MINIMAL", "NORMAL", "DEBUG"]
EventClass: TypeAlias = type[Any]
LEVELS: tuple[Level, ...] = ("OFF", "MINIMAL", "NORMAL", "DEBUG")


@dataclass(frozen=True, kw_only=True)
class EventSpec:
    """What the wire knows of an event type."""

    type: str
    stream: Stream
    cls: EventClass
    keep: int
    """How many of the newest a snapshot holds (per key, where there is one)."""
    key: tuple[str, ...]
    """Fields of ctx or data that tell subjects apart, e.g. ("env", "slot")."""
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
    rank: int = 0
    """Which process of the run tells it; 0 is the one with the journal."""


# --- life: never dropped ---------------------------------------------------------------------------


@event("run.started", "life")
@dataclass(kw_only=True)
class RunStarted:
    """First event of a boot: everything a viewer needs to name columns and codes."""

    run: str
    name: str
    boot: str
    pid: int
    host: str
    version: str
    torch: str
    device: str
    task: str
    policy: str
    envs: int
    slots: list[str]
    blueprints: list[str]
    stages: list[str]
    """Stage names; `EpochFinished.stage` holds indices into it."""
    ops: list[str]
    heads: list[str]
    episode_epochs: int
    rounds: int
    """Rounds asked for; 0 = until stopped."""
    host_parameters: int
    seed: int
    ranks: int = 1
    """Processes that train the run; each has an equal share of the envs, in order."""
    config: dict[str, Any]
    execution: dict[str, Any] = field(default_factory=dict)
    """What was decided at start: `group_size` (hosts per stacked program), `convolution`, `amp`."""
    resumed_round: int | None = None
    """The last finished round of the checkpoint this boot goes on from."""


@event("run.state", "life")
@dataclass(kw_only=True)
class RunStateChanged:
    """The trainer entered a state (see `commands.RunState`)."""

    state: str
    reason: str = ""


@event("run.stopped", "life")
@dataclass(kw_only=True)
class RunStopped:
    """Last event of a boot that ended in order."""

    reason: str
    exit_code: int
    rounds: int
    error: str | None = None


@event("postmortem.written", "life")
@dataclass(kw_only=True)
class PostmortemWritten:
    """What an abnormal end left behind is in this folder; `esper-daemon doctor` reads it."""

    path: str
    reason: str


@event("round.started", "life")
@dataclass(kw_only=True)
class RoundStarted:
    """N freshly built hosts begin an episode."""

    rounds: int


@event("round.finished", "life", keep=400)
@dataclass(kw_only=True)
class RoundFinished:
    """One round: N episodes in lockstep and one PPO update."""

    seconds: float
    env_epochs_per_second: float
    return_mean: float
    return_p10: float
    return_p50: float
    return_p90: float
    accuracy_mean: float
    """Mean final validation accuracy over envs."""
    accuracy_best: float
    best_env: int
    test_accuracy_mean: float | None = None
    test_accuracy_best: float | None = None
    parameters_mean: float = 0.0
    """Mean parameters of host and live seeds at the end."""
    final_accuracy: list[float] = field(default_factory=list)
    final_return: list[float] = field(default_factory=list)
    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per phase between the last epoch and this event: update, test, shapley."""
    device_syncs: int | None = None
    """Times in the round that the host waited for a GPU: one an epoch and an update by design."""
    graph_breaks: int = 0
    """Places in the round where torch.compile gave up on a function."""
    recompiles: int = 0
    """Programs compiled anew in the round since an input did not fit."""
    allocator_retries: int | None = None
    """Times in the round that a GPU's memory was full until what lay unused was given back."""


@event("seed.stage", "life", keep=2, key=("env", "slot"))
@dataclass(kw_only=True)
class SeedStage:
    """A seed moved along its life; ctx.env says whose."""

    slot: str
    from_stage: str
    to_stage: str
    blueprint: str | None
    alpha: float
    by: Literal["policy", "auto", "operator", "governor"]
    parameters: int = 0
    contribution: float | None = None


@event("seed.gate", "life", keep=1, key=("env", "slot"))
@dataclass(kw_only=True)
class SeedGate:
    """A gate was evaluated for a seed that asked to pass."""

    slot: str
    gate: str
    passed: bool
    checks: dict[str, bool]


@event("anomaly", "life", keep=1, key=("source", "kind"))
@dataclass(kw_only=True)
class Anomaly:
    """A check raised, escalated or cleared; keyed by (source, kind)."""

    kind: str
    source: str
    """`env07`, `env07.r0c1`, `policy`, `policy.blueprint`, `critic`, `system`, `telemetry`."""
    severity: Severity
    active: bool
    value: float | None = None
    threshold: float | None = None
    count: int = 1
    since: int = 0
    """Wall time of the first raise, microseconds."""
    hint: str = ""


@event("governor.rollback", "life", keep=1, key=("env",))
@dataclass(kw_only=True)
class GovernorRollback:
    """A sick host was put back to its last good snapshot."""

    reason: str
    loss: float
    restored_epoch: int
    penalty: float


@event("checkpoint.saved", "life")
@dataclass(kw_only=True)
class CheckpointSaved:
    """A checkpoint is on disk, complete."""

    path: str
    bytes: int
    seconds: float
    reason: str
    command: str | None = None


@event("checkpoint.failed", "life")
@dataclass(kw_only=True)
class CheckpointFailed:
    """A checkpoint could not be written; the one before it is intact."""

    path: str
    error: str
    reason: str
    command: str | None = None


@event("telemetry.level", "life")
@dataclass(kw_only=True)
class TelemetryLevel:
    """What is collected changed; with `epochs` it falls back by itself after so many."""

    level: Level
    previous: Level
    reason: str
    epochs: int | None = None
    env: int | None = None
    command: str | None = None


@event("telemetry.stride", "life", keep=20)
@dataclass(kw_only=True)
class TelemetryStride:
    """Drift, and layers at level DEBUG, are collected every `new` epochs, to keep within a budget."""

    old: int
    new: int
    share: float
    """Of the wall time, that collecting took at the old stride."""
    budget: float


@event("telemetry.lost", "life", key=("stream",))
@dataclass(kw_only=True)
class TelemetryLost:
    """Events refused because a queue was full: the only true loss, and it is counted."""

    stream: str
    count: int
    from_ts: int
    to_ts: int


@event("journal.removed", "life", keep=4)
@dataclass(kw_only=True)
class JournalRemoved:
    """The oldest closed segment went, to keep the journal within `journal.keep_bytes`."""

    segment: str
    bytes: int
    """Freed on the disk."""
    from_ts: int
    to_ts: int
    last: dict[str, int]
    """The newest number removed, per stream; what follows it is held."""


@event("profiler.started", "life")
@dataclass(kw_only=True)
class ProfilerStarted:
    epochs: int
    command: str | None = None


@event("profiler.finished", "life")
@dataclass(kw_only=True)
class ProfilerFinished:
    """The trace is on disk, in Chrome's format and by the name that TensorBoard's plugin looks for."""

    path: str
    bytes: int
    epochs: int
    top: list[dict[str, Any]]
    """Top operators by self time: name, calls, self_us, share."""
    gpu_utilisation: float | None = None
    """Share of the window in which the GPU was at work."""
    kernels: int | None = None
    """Launched on the GPU."""
    allocator_seconds: float | None = None
    """In which threads asked for memory."""
    python_share: float | None = None
    """Share of the window in which no thread ran an operator: Python, or waiting."""
    command: str | None = None
    error: str | None = None


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
    """What the one who asked gave as the reason."""


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


# --- metric ----------------------------------------------------------------------------------------


@event("rank.lost", "life", keep=4)
@dataclass(kw_only=True)
class RankLost:
    """A process of a run on several ranks is gone or hangs; the run ends."""

    error: str
    """Which, and how it was noticed."""
    checkpoint: str | None
    """The newest one, to resume from."""


@event("rank.epoch", "metric", keep=4, key=("rank",))
@dataclass(kw_only=True)
class RankEpoch:
    """Where an epoch's time went on one rank beside the first; `ctx.rank` says which."""

    seconds: float
    phases: dict[str, float]
    """Seconds by phase, which sum to `seconds`."""


@event("epoch", "metric", keep=40)
@dataclass(kw_only=True)
class EpochFinished:
    """One epoch of all envs, as columns of N (and of N x S for slots)."""

    seconds: float
    train_loss: list[float | None]
    train_accuracy: list[float | None]
    val_loss: list[float | None]
    val_accuracy: list[float | None]
    reward: list[float | None]
    episode_return: list[float]
    """Sum of rewards since the episode began."""
    op: list[int]
    action_slot: list[int | None]
    host_grad_norm: list[float | None]
    host_health: list[float | None]
    stage: list[list[int]]
    epochs_in_stage: list[list[int]]
    alpha: list[list[float]]
    blueprint: list[list[int | None]]
    contribution: list[list[float | None]]
    """Accuracy with the seed minus accuracy with its alpha forced to 0."""
    seed_grad_norm: list[list[float | None]]
    seed_health: list[list[float | None]]
    parameters: list[int]
    """Parameters of the host and its live seeds."""
    reward_components: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per phase of the epoch: train, validate, decide, act, telemetry."""
    seed_grad_ratio: list[list[float | None]] = field(default_factory=list)
    """Gradient norm of the seed over that of its host; strict gates ask for some."""
    cpu_phases: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the process, all its threads, in those phases."""
    gpu_phases: dict[str, float] = field(default_factory=dict)
    """Seconds that a GPU worked in the phases of an earlier epoch; told of one epoch in eight."""


@event("ppo.update", "metric", keep=200)
@dataclass(kw_only=True)
class PPOUpdate:
    """One PPO update over a round's rollout."""

    seconds: float
    policy_loss: float
    value_loss: float
    entropy: float
    """Normalised by the logarithm of the number of legal choices, 0..1."""
    head_entropy: dict[str, float | None]
    approx_kl: float
    clip_fraction: float
    ratio_min: float
    ratio_max: float
    explained_variance: float | None
    grad_norm: float
    head_grad_norm: dict[str, float | None]
    critic_grad_norm: float | None
    advantage_mean: float
    advantage_std: float
    learning_rate: float
    entropy_coefficient: float
    epochs: int
    minibatches: int
    early_stop: bool
    skipped_nonfinite: int
    op_fraction: dict[str, float]
    """Share of each op among the actions of the round."""
    lstm_h_rms: float | None = None
    lstm_c_rms: float | None = None
    return_std: float | None = None
    value_nrmse: float | None = None
    """Root mean square of the critic's error over the standard deviation of the returns."""
    head_ratio_max: dict[str, float] = field(default_factory=dict)
    """Widest probability ratio of each head; `ratio_max` is the widest of these."""
    observation_rms: float | None = None
    """Of the measured features as the policy saw them: about 1 once the normaliser has settled."""
    observation_clipped: float | None = None
    """Share of them that was beyond the normaliser's limit."""
    observation_missing: float | None = None
    """Share of the features that was not measured."""


@event("shapley.computed", "metric", keep=10)
@dataclass(kw_only=True)
class ShapleyComputed:
    """What each seed was worth at the round's end, shared fairly among those of its env (Shapley values).

    The worth of a coalition is the validation accuracy with its seeds only, the others' alpha at 0. The
    values of an env sum to the accuracy with all its seeds less that with none.
    """

    value: list[list[float | None]]
    """N x S, in accuracy; null where no seed is blended."""
    half_width: list[list[float | None]]
    """N x S, of the 95 % confidence interval; 0 where the value is exact."""
    coalitions: list[int]
    """N, how many were measured."""


@event("drift", "metric", keep=60)
@dataclass(kw_only=True)
class Drift:
    """Gradient drift of every source: |x - ema| / max(ema, 1e-6), columns over `source`."""

    source: list[str]
    """`env07`, `env07.r0c1`, `policy`, `policy.<head>`, `critic`."""
    norm: list[float | None]
    norm_ema: list[float | None]
    norm_drift: list[float | None]
    health: list[float | None]
    health_ema: list[float | None]
    health_drift: list[float | None]


@event("system", "metric", keep=60, key=("rank",))
@dataclass(kw_only=True)
class SystemSample:
    """The machine, once a second."""

    cpu_percent: float
    """Of one core, this process."""
    rss: int
    memory_total: int
    memory_used: int
    load1: float
    cores: int
    disk_free: int
    gpu_percent: float | None = None
    gpu_memory: int | None = None
    gpu_memory_total: int | None = None
    gpu_celsius: float | None = None


# --- trace: only while escalated -------------------------------------------------------------------


@event("layers", "trace", keep=4)
@dataclass(kw_only=True)
class LayerStatistics:
    """Gradients, weights and outputs by layer at an epoch's end (DEBUG): columns L x N.

    A layer is a tensor of weights, or what a module puts out (`block0.out`, `r0c0.out`, `head.out`); null are
    the columns of the other kind, layers that an env does not have, and envs that were not asked for.
    """

    layer: list[str]
    grad_norm: list[list[float | None]]
    grad_rms: list[list[float | None]]
    grad_max: list[list[float | None]]
    zero_fraction: list[list[float | None]]
    nonfinite: list[list[int | None]]
    weight_norm: list[list[float | None]]
    activation_rms: list[list[float | None]] = field(default_factory=list)
    activation_max: list[list[float | None]] = field(default_factory=list)
    activation_zero_fraction: list[list[float | None]] = field(default_factory=list)
    """Behind a ReLU: the share that is off."""


# --- log -------------------------------------------------------------------------------------------


@event("log", "log", keep=100)
@dataclass(kw_only=True)
class LogLine:
    level: str
    logger: str
    message: str
    traceback: str | None = None
