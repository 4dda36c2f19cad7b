"""Streams `metric` and `trace`: what is measured, and what only an escalation measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from .registry import event


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
    """Since the epoch before or the beginning of the round, without pauses."""
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
    """N x S; null where no seed learns, or it has no tensors (`noop`)."""
    seed_health: list[list[float | None]]
    """N x S, share of the seed's tensors with a usable gradient; null likewise."""
    parameters: list[int]
    """Parameters of the host and its live seeds."""
    reward_components: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per phase of the epoch: train, validate, reward, decide, act, wait (the host for the device),
    telemetry, commands, profiler, other. They nest: an inner one's time is not counted in the outer one."""
    seed_grad_ratio: list[list[float | None]] = field(default_factory=list)
    """Gradient norm of the seed over that of its host; strict gates ask for some."""
    interaction: list[list[float | None]] = field(default_factory=list)
    """N x S, sum of each seed's interactions with the others, as the policy saw it before the epoch."""
    cpu_phases: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the process, all its threads, in those phases."""
    gpu_phases: dict[str, float] = field(default_factory=dict)
    """Seconds that a GPU worked in the phases of an earlier epoch, `gpu_epoch`; sent for one in eight."""
    loss_scale: list[float] = field(default_factory=list)
    """With fp16, what each host's loss is multiplied by after the epoch; it halves with each overflow."""
    skipped_steps: list[int] = field(default_factory=list)
    """With fp16, steps of the epoch that each host did not take since its gradients overflowed."""
    action: list[str] = field(default_factory=list)
    """Ids of the actions that the policy chose for this epoch; `seed.stage` and `seed.gate` refer to them."""
    heads: dict[str, list[int | None]] = field(default_factory=dict)
    """What each head of the policy chose, by the names of `RunStarted.heads`; null where it has no effect."""
    probability: list[float] = field(default_factory=list)
    """Of the whole action, all heads together: exp of the log-probability that PPO learns by. Empty where a
    rule decides in place of the network."""
    op_probability: list[list[float]] = field(default_factory=list)
    """N x ops, in the order of `RunStarted.ops`; 0 where it is legal in no slot. Empty likewise."""
    value: list[float] = field(default_factory=list)
    """The critic's estimate before the epoch of the discounted rewards to come; empty likewise."""
    executed: list[bool] = field(default_factory=list)
    """Whether the gates let the action through."""
    gates_asked: list[list[int]] = field(default_factory=list)
    """The gates that were evaluated before the epoch, as bits: 8 is G3, 36 are G2 and G5."""
    gates_passed: list[list[int]] = field(default_factory=list)
    """Those of them whose checks all held."""
    host_learning_rate: float | None = None
    """That all hosts were trained with, as schedule and warm-up have it in this epoch."""
    seed_learning_rate: float | None = None
    """That of their seeds."""
    gpu_round: int | None = None
    """The round that `gpu_phases` were measured in; null where there are none."""
    gpu_epoch: int | None = None
    """The epoch of `gpu_round` that they were measured in, as `ctx` counts epochs."""


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
    target_kl: float | None = None
    """KL divergence beyond which the update was to stop; 0 = never. The limits of `kl_spike` follow it."""
    head_clip_fraction: dict[str, float | None] = field(default_factory=dict)
    """Share of clipped ratios of each head; null where it never mattered."""
    value_coefficient: float | None = None
    """Weight of the value loss in this update."""
    observation_groups: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """By group of features, as the policy saw them in the round: mean, std, the shares of outliers (beyond 3
    standard deviations), clipped and missing ones, and drift: how many standard deviations the features lie
    from where they were in all earlier rounds; null where there is none."""
    explained_variance_within: float | None = None
    """Of the rewards that followed, between envs at the same epoch: what the critic knows of an env beyond
    the time, which alone can explain most of `explained_variance`. Null where all envs earned the same."""
    limits: dict[str, list[float]] | None = None
    """By field the limit of a warning and, where there is one, of a critical value, as they were in force; a
    field that is not judged yet has none. Missing where nothing is judged."""

    def __post_init__(self) -> None:
        if self.limits is None:  # the class has it, and the line is shorter
            self.__dict__.pop("limits", None)


@event("teacher.round", "metric", keep=200)
@dataclass(kw_only=True)
class TeacherRound:
    """What a teacher knew after a round, before PPO: in journals of earlier versions, never since."""

    stage: str
    """`search`: schedules are tried; `demonstration`: hosts follow what is best by their looks."""
    rounds: int
    """How many rounds are the teacher's."""
    schedules: dict[str, list[str | None]]
    """By task the blueprint in each slot of the best schedule known; null where it plants nothing."""
    worth: dict[str, float]
    """By task the return that is expected of that schedule."""
    tried: dict[str, int]
    """By task the episodes in which a schedule was tried."""
    recognised: float | None = None
    """Share of the hosts whose task was told by what they had shown; null in a search."""
    imitation_loss: float | None = None
    """-ln p of the demonstrated actions in nats per step, where the policy has imitated in this round."""


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
    interaction: list[list[list[float | None]]] = field(default_factory=list)
    """N x S x S, what each two seeds gain by one another, in accuracy (Shapley interaction index); null where
    there are no two, or not all coalitions of the env were measured."""


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
    limits: dict[str, float] = field(default_factory=dict)
    """The drift from which on it is noted, as it was in force: by scope and signal (`seed.norm_drift`).
    Absent where what is usual is not known yet."""


@event("system", "metric", keep=60, key=("rank",))
@dataclass(kw_only=True)
class SystemSample:
    """The run's process and its machine, once a second, of a published run each five."""

    cpu_percent: float
    """Of the process: 100 is one core, and there are `cores`."""
    rss: int
    """Bytes that the process has in memory."""
    memory_total: int
    """Bytes that there are for the process: of the machine, or of control groups that grant less."""
    memory_used: int
    """Bytes of them in use, by all processes."""
    load1: float
    """Of the machine."""
    cores: int
    """Cores that the process may keep busy, of a control group's quota rounded up."""
    disk_free: int
    """Bytes on the disk of the run's folder."""
    gpu_percent: float | None = None
    gpu_memory: int | None = None
    gpu_memory_total: int | None = None
    gpu_celsius: float | None = None
    gpu_allocated: int | None = None
    """Bytes of this process's tensors, of PyTorch's allocator."""
    gpu_reserved: int | None = None
    """Bytes that the allocator holds for them: those allocated, and those that it can give out again."""
    gpu_fragmentation: float | None = None
    """Share of those reserved that is free in pieces of split blocks, which cannot be given back."""
    machine_cpu_percent: float | None = None
    """Of all processes: 100 is every core of the machine."""
    machine_cores: int | None = None


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
