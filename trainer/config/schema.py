"""One typed tree of options: defaults < --preset < --config < ESPER_* environment < --set key=value.

Each field's type holds its bounds and its description; the CLI help, the reference page and the error
messages are made from them. Reading and merging the sources is in `load`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from protocol.messages.vocabulary import Level


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of the tree: unknown keys are errors."""


def _count(description: str, *, ge: int = 1, le: int = 1_000_000) -> Meta:
    return Meta(ge=ge, le=le, description=description)


def _number(description: str, *, ge: float = 0.0, le: float = 1e9) -> Meta:
    return Meta(ge=ge, le=le, description=description)


class TaskConfig(Section, frozen=True):
    dataset: Annotated[
        str, Meta(description="Name of the dataset to learn; `esper-daemon data` lists them")
    ] = "digits"
    data_dir: Annotated[
        str, Meta(description="Folder or text file with the dataset; empty = where it is registered")
    ] = ""
    augment: Annotated[
        tuple[Literal["crop", "flip"], ...],
        Meta(max_length=2, description="Random changes to the training images; empty = none"),
    ] = ()
    shared_batches: Annotated[
        bool, Meta(description="Whether all envs train on the same batches in one order")
    ] = False
    context: Annotated[
        int, _count("Length in characters of the text window that a host sees", ge=2, le=4096)
    ] = 32
    batch_size: Annotated[
        int, _count("Images, or windows of a text, per env and training step", le=65_536)
    ] = 64
    batches_per_epoch: Annotated[int, _count("Training steps per epoch")] = 12


class HostConfig(Section, frozen=True):
    family: Annotated[
        Literal["auto", "cnn", "transformer"],
        Meta(description="Architecture of the hosts; auto = cnn for images, transformer for text"),
    ] = "auto"
    channels: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1024)], ...],
        Meta(
            min_length=1,
            max_length=10,
            description="Channels of each block of a cnn host, one slot per block",
        ),
    ] = (8, 8, 8)
    kernel: Annotated[
        Literal[1, 3],
        Meta(description="Side of a cnn host's convolution kernels in pixels; 1 = blind to shapes"),
    ] = 1
    width: Annotated[
        int, _count("Width of a transformer host's residual stream in channels", ge=2, le=4096)
    ] = 32
    depth: Annotated[int, _count("Number of blocks of a transformer host, one slot per block", le=10)] = 3
    heads: Annotated[
        int, _count("Attention heads per block of a transformer host; 0 = no attention", ge=0, le=64)
    ] = 0
    mlp: Annotated[
        int,
        _count("Hidden units of the MLP in each block of a transformer host; 0 = no MLP", ge=0, le=16_384),
    ] = 32
    learning_rate: Annotated[
        float,
        _number(
            "Learning rate of hosts and seeds (SGD); where none is given, a text brings 0.5, 0.2 with heads",
            le=10.0,
        ),
    ] = 0.05
    momentum: Annotated[float, _number("Momentum of hosts and seeds (SGD)", le=0.999)] = 0.9


class EnvsConfig(Section, frozen=True):
    count: Annotated[int, _count("Number of envs: hosts that are trained side by side", le=4096)] = 8
    group_size: Annotated[
        int, _count("Hosts per stacked program; 0 = measured when the run starts", ge=0, le=4096)
    ] = 0
    threads: Annotated[
        int, _count("Worker threads that train host groups on a CPU; 0 = one per core", ge=0, le=64)
    ] = 0
    convolution: Annotated[
        Literal["auto", "grouped", "unfold"],
        Meta(
            description=(
                "How hosts and seeds convolve: one grouped convolution, or unfolded pixels and "
                "matrix products; auto = measured"
            )
        ),
    ] = "auto"
    plan: Annotated[
        Literal["gather", "masked"],
        Meta(description="Which seeds are computed: gather = live ones, masked = all, selected by masks"),
    ] = "gather"


class AmpConfig(Section, frozen=True):
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "off"],
        Meta(
            description=(
                "Precision of the hosts' forward passes; auto = bf16 on GPUs that have it, off = float32"
            )
        ),
    ] = "auto"


class CudaConfig(Section, frozen=True):
    graphs: Annotated[
        bool,
        Meta(
            description=(
                "Whether policy and, with envs.plan=masked, training steps are replayed as CUDA graphs"
            )
        ),
    ] = True
    tf32: Annotated[
        bool, Meta(description="Whether float32 matrix products and convolutions use TF32 on a GPU")
    ] = True
    allocator: Annotated[
        str,
        Meta(
            pattern=r"^$|^[a-z_0-9]+:[^,\s]+(,[a-z_0-9]+:[^,\s]+)*$",
            description=(
                "Settings of torch's CUDA allocator, such as expandable_segments:True; "
                "empty = PYTORCH_CUDA_ALLOC_CONF"
            ),
        ),
    ] = ""


class ValidationConfig(Section, frozen=True):
    counterfactual_budget: Annotated[
        float,
        _number(
            "Work spent on measuring contributions, as a multiple of that of validation; "
            "the oldest are measured first",
            ge=0.01,
            le=1e3,
        ),
    ] = 2.0
    shapley_every: Annotated[int, _count("Interval in rounds between Shapley analyses; 0 = never", ge=0)] = 1
    shapley_coalitions: Annotated[
        int,
        _count(
            "Coalitions measured per env in a Shapley analysis; values are exact where all coalitions fit",
            ge=4,
            le=1_000_000,
        ),
    ] = 64


CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]


class CompileConfig(Section, frozen=True):
    mode: Annotated[
        CompileMode,
        Meta(
            description=(
                "Mode of torch.compile for policy, PPO loss, GAE, rewards and, with "
                "envs.plan=masked, training steps"
            )
        ),
    ] = "off"


class SeedsConfig(Section, frozen=True):
    blueprints: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            max_length=16,
            description=(
                "Blueprints that the policy may plant; NAME:OPTION=VALUE chooses a size, such as lora:rank=8"
            ),
        ),
    ] = ("norm", "attention", "depthwise", "conv_light")
    gates: Annotated[
        Literal["permissive", "strict"],
        Meta(description="Strictness of the gates G2, G3 and G5; docs/training.md lists their checks"),
    ] = "permissive"
    min_training_epochs: Annotated[
        int, _count("Epochs that a seed trains before gate G2; 0 = a twelfth of the episode", ge=0)
    ] = 0
    min_blending_epochs: Annotated[
        int, _count("Epochs that a seed blends before gate G3, with strict gates", ge=0)
    ] = 3
    embargo_epochs: Annotated[
        int, _count("Epochs that a slot stays closed after its seed was pruned", ge=1)
    ] = 2
    max_grad_norm: Annotated[
        float, _number("L2 norm to which each seed's gradient is clipped; 0 = not clipped", le=1e6)
    ] = 0.25
    max_live: Annotated[
        int,
        _count(
            "Seeds of one host that may be on their way, from GERMINATED to HOLDING, at once; 0 = no limit",
            ge=0,
            le=64,
        ),
    ] = 0
    one_at_a_time: Annotated[
        bool,
        Meta(description="Whether nothing is planted in a host before its newest seed is in HOLDING or gone"),
    ] = False


class GovernorConfig(Section, frozen=True):
    veto: Annotated[
        bool, Meta(description="Whether actions that would make the governor undo the host are not executed")
    ] = True
    veto_epochs: Annotated[
        int,
        _count(
            "Epochs for which an env does not begin again what a rollback has undone, with governor.veto",
            ge=0,
        ),
    ] = 2


class PolicyConfig(Section, frozen=True):
    kind: Annotated[
        Literal["ppo", "heuristic", "fixed", "random", "no_growth"],
        Meta(description="Policy that chooses the actions: PPO, or a fixed rule to compare it with"),
    ] = "ppo"
    hidden: Annotated[int, _count("Units of the policy's LSTM and of the layer before it", ge=8, le=4096)] = (
        64
    )


class PPOConfig(Section, frozen=True):
    learning_rate: Annotated[float, _number("Learning rate of the policy (Adam)", le=1.0)] = 1e-3
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        Meta(description="Course of ppo.learning_rate to 0 over the run's rounds, after its warm-up"),
    ] = "constant"
    warmup_rounds: Annotated[
        int, _count("Rounds over which the policy's learning rate grows to ppo.learning_rate", ge=0)
    ] = 0
    gamma: Annotated[float, _number("Discount per epoch", le=1.0)] = 1.0
    gae_lambda: Annotated[float, _number("Lambda of generalised advantage estimation", le=1.0)] = 0.95
    clip: Annotated[
        float, _number("Distance from 1 at which probability ratios are clipped", ge=0.01, le=1.0)
    ] = 0.2
    epochs: Annotated[int, _count("Passes over a rollout per update", le=100)] = 8
    minibatches: Annotated[
        int, _count("Minibatches per pass; each has the complete sequences of some envs", le=1024)
    ] = 2
    entropy_coefficient: Annotated[float, _number("Weight of the entropy bonus in the PPO loss", le=1.0)] = (
        0.05
    )
    value_coefficient: Annotated[float, _number("Weight of the value loss in the PPO loss", le=10.0)] = 0.5
    max_grad_norm: Annotated[
        float, _number("L2 norm to which the policy's gradient is clipped", ge=1e-6, le=1e6)
    ] = 0.5
    target_kl: Annotated[
        float, _number("KL divergence in nats beyond which an update stops early; 0 = never", le=10.0)
    ] = 0.01


class RewardConfig(Section, frozen=True):
    mode: Annotated[
        Literal["shaped", "sparse", "contribution", "minimal"],
        Meta(description="Reward function; docs/training.md lists the components of each"),
    ] = "shaped"
    rent: Annotated[float, _number("Cost of added parameters, per multiple of the host's own", le=10.0)] = (
        0.01
    )
    contribution: Annotated[
        float,
        _number(
            "Weight of the accuracy that seeds contribute, in the modes shaped and contribution", le=10.0
        ),
    ] = 0.2
    stage: Annotated[
        float,
        _number(
            "Weight of how far seeds are in their life cycle, in the modes shaped and contribution", le=10.0
        ),
    ] = 0.2
    shock: Annotated[
        float,
        _number("Cost of moving alpha, per square of an epoch's step, in the mode contribution", le=10.0),
    ] = 0.02
    early_prune: Annotated[
        float, _number("Cost of each seed pruned before it could blend, in the mode minimal", le=10.0)
    ] = 0.05
    rollback_penalty: Annotated[
        float, _number("Cost of each epoch that the governor rolled back", le=100.0)
    ] = 0.2


class TelemetryConfig(Section, frozen=True):
    level: Annotated[
        Level,
        Meta(description="Level of detail at which telemetry is collected when the run starts"),
    ] = "NORMAL"
    budget: Annotated[
        float,
        _number(
            "Share of the time for collecting drift and, at level DEBUG, layers; "
            "beyond it the interval grows",
            le=1.0,
            ge=1e-6,
        ),
    ] = 0.01
    stride: Annotated[
        int,
        _count(
            "Fixed interval in epochs between collections of drift and layers; 0 = by telemetry.budget", ge=0
        ),
    ] = 0
    debug_every: Annotated[
        int,
        _count(
            "Interval in rounds between rounds that begin at level DEBUG, from the first on; 0 = never", ge=0
        ),
    ] = 0
    debug_epochs: Annotated[
        int, _count("Epochs at level DEBUG at the beginning of a round chosen by telemetry.debug_every")
    ] = 1
    escalate_on: Annotated[
        Literal["off", "warning", "critical"],
        Meta(description="Severity from which an anomaly escalates its env, or all envs, to level DEBUG"),
    ] = "critical"
    escalate_epochs: Annotated[int, _count("Epochs that an automatic escalation lasts")] = 5
    escalate_share: Annotated[
        float, _number("Largest share of a round's epochs that automatic escalations may take", le=1.0)
    ] = 0.25


class ProfilerConfig(Section, frozen=True):
    rounds: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...],
        Meta(
            max_length=100,
            description=(
                "Rounds since this start, from 1, whose last epochs and PPO update are profiled; empty = none"
            ),
        ),
    ] = ()
    epochs: Annotated[int, _count("Last epochs of a round in profiler.rounds that are profiled")] = 2


class CheckpointConfig(Section, frozen=True):
    keep: Annotated[
        int, _count("Number of newest checkpoints to keep, besides best and tagged ones", le=1000)
    ] = 3
    every_seconds: Annotated[
        int,
        _count(
            "Interval in seconds between checkpoints within a round; 0 = only at the end of rounds",
            ge=0,
            le=86_400,
        ),
    ] = 600


class JournalConfig(Section, frozen=True):
    segment_bytes: Annotated[
        int, _count("Size in bytes at which a journal segment is closed and compressed", ge=65_536, le=2**40)
    ] = 64 * 1024 * 1024
    segment_seconds: Annotated[
        int, _count("Age in seconds at which a journal segment is closed and compressed", le=31_536_000)
    ] = 3600
    keep_bytes: Annotated[
        int,
        _count(
            "Total size in bytes beyond which the oldest compressed segments are deleted; 0 = keep all",
            ge=0,
            le=2**60,
        ),
    ] = 0


class WireConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            pattern=r"^(tcp://.+)?$(?!\n)",
            description="Address tcp://HOST:PORT at which authorized keys may connect; empty = no TCP port",
        ),
    ] = ""


class MetricsConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            description="Address HOST:PORT at which Prometheus may scrape the run; port 0 = any; empty = none"
        ),
    ] = ""
    allow_unauthenticated: Annotated[
        bool,
        Meta(
            description=(
                "Whether metrics.listen may be an address that other machines reach; whoever reaches it "
                "reads all metrics, without key and encryption"
            )
        ),
    ] = False


class Config(Section, frozen=True):
    """Every option of `esper-daemon start`."""

    seed: Annotated[int, _count("Seed of every random number", ge=0, le=2**31 - 1)] = 1
    rounds: Annotated[int, _count("Number of rounds to train; 0 = until stopped", ge=0)] = 0
    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="Device to train on: auto (a GPU where there is one), cpu, cuda or cuda:N",
        ),
    ] = "auto"
    episode_epochs: Annotated[int, _count("Epochs per episode", ge=2, le=100_000)] = 24
    task: TaskConfig = field(default_factory=TaskConfig)
    host: HostConfig = field(default_factory=HostConfig)
    envs: EnvsConfig = field(default_factory=EnvsConfig)
    amp: AmpConfig = field(default_factory=AmpConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    cuda: CudaConfig = field(default_factory=CudaConfig)
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    wire: WireConfig = field(default_factory=WireConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
