"""One typed tree of options: defaults < --preset < --config < ESPER_* environment < --set key=value.

Each field's type holds its bounds and its description; the CLI help, the reference page and the error
messages are made from them. Reading and merging the sources is in `settings`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of the tree: unknown keys are errors."""


def _count(description: str, *, ge: int = 1, le: int = 1_000_000) -> Meta:
    return Meta(ge=ge, le=le, description=description)


def _number(description: str, *, ge: float = 0.0, le: float = 1e9) -> Meta:
    return Meta(ge=ge, le=le, description=description)


class TaskConfig(Section, frozen=True):
    dataset: Annotated[str, Meta(description="what to learn; `esper-daemon data` lists it")] = "digits"
    data_dir: Annotated[str, Meta(description="its folder of files, or its text; empty = as registered")] = ""
    augment: Annotated[
        tuple[Literal["crop", "flip"], ...],
        Meta(max_length=2, description="random crops and flips of the training images; empty = none"),
    ] = ()
    shared_batches: Annotated[bool, Meta(description="all envs see the same images, in one order")] = False
    context: Annotated[int, _count("characters of a text that a host sees at once", ge=2, le=4096)] = 32
    batch_size: Annotated[int, _count("images, or windows of a text, per env and step", le=65_536)] = 64
    batches_per_epoch: Annotated[int, _count("training steps per epoch")] = 12


class HostConfig(Section, frozen=True):
    family: Annotated[
        Literal["auto", "cnn", "transformer"],
        Meta(description="auto = cnn for images, else transformer"),
    ] = "auto"
    channels: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1024)], ...],
        Meta(min_length=1, max_length=10, description="cnn: width of each block; a slot is behind each"),
    ] = (8, 8, 8)
    kernel: Annotated[Literal[1, 3], Meta(description="cnn: 1 = convolutions that see no shape")] = 1
    width: Annotated[int, _count("transformer: width of the residual stream", ge=2, le=4096)] = 32
    depth: Annotated[int, _count("transformer: blocks; a slot sits behind each", le=10)] = 3
    heads: Annotated[int, _count("transformer: heads; 0 = blocks that do not look back", ge=0, le=64)] = 0
    mlp: Annotated[int, _count("transformer: width of a block's MLP; 0 = none", ge=0, le=16_384)] = 32
    learning_rate: Annotated[
        float, _number("SGD, host and seeds; 0.05 becomes 0.5 for a text, 0.2 with heads", le=10.0)
    ] = 0.05
    momentum: Annotated[float, _number("SGD momentum", le=0.999)] = 0.9


class EnvsConfig(Section, frozen=True):
    count: Annotated[int, _count("hosts trained at once", le=4096)] = 8
    group_size: Annotated[int, _count("hosts per stacked program; 0 = measured at start", ge=0, le=4096)] = 0
    threads: Annotated[int, _count("worker threads for host groups on a CPU; 0 = by cores", ge=0, le=64)] = 0
    convolution: Annotated[
        Literal["auto", "grouped", "unfold"],
        Meta(description="one grouped convolution, or unfolded pixels and matrix products; auto = measured"),
    ] = "auto"
    plan: Annotated[
        Literal["gather", "masked"], Meta(description="run live seeds only, or all with one-hot weights")
    ] = "gather"


class AmpConfig(Section, frozen=True):
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "off"],
        Meta(description="what hosts' forward passes compute in; auto = bf16 on GPUs that have it"),
    ] = "auto"


class CudaConfig(Section, frozen=True):
    graphs: Annotated[
        bool, Meta(description="replay policy and (envs.plan=masked) training as CUDA graphs")
    ] = True
    tf32: Annotated[bool, Meta(description="float32 matrix products and convolutions in TF32")] = True
    allocator: Annotated[
        str,
        Meta(
            pattern=r"^$|^[a-z_0-9]+:[^,\s]+(,[a-z_0-9]+:[^,\s]+)*$",
            description="as PYTORCH_CUDA_ALLOC_CONF, expandable_segments:True say; empty = as that says",
        ),
    ] = ""


class ValidationConfig(Section, frozen=True):
    counterfactual_budget: Annotated[
        float,
        _number("further work for contributions, relative to validation; the stalest first", ge=0.01, le=1e3),
    ] = 2.0
    shapley_every: Annotated[int, _count("rounds from one Shapley analysis to the next; 0 = none", ge=0)] = 1
    shapley_coalitions: Annotated[
        int, _count("coalitions measured per env in one; exact where all fit", ge=4, le=1_000_000)
    ] = 64


CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]


class CompileConfig(Section, frozen=True):
    mode: Annotated[
        CompileMode,
        Meta(description="torch.compile of policy, PPO loss, GAE, rewards and (envs.plan=masked) training"),
    ] = "off"


class SeedsConfig(Section, frozen=True):
    blueprints: Annotated[
        tuple[str, ...], Meta(min_length=1, max_length=16, description="kinds of seeds on offer")
    ] = ("norm", "attention", "depthwise", "conv_light")
    gates: Annotated[Literal["permissive", "strict"], Meta(description="see docs/training.md")] = "permissive"
    min_training_epochs: Annotated[
        int, _count("epochs in TRAINING before G2; 0 = a twelfth of the episode", ge=0)
    ] = 0
    min_blending_epochs: Annotated[int, _count("epochs in BLENDING before G3 (strict)", ge=0)] = 3
    embargo_epochs: Annotated[int, _count("epochs a pruned slot stays closed", ge=1)] = 2
    max_grad_norm: Annotated[float, _number("gradient clip of each seed by itself; 0 = none", le=1e6)] = 0.25


class PolicyConfig(Section, frozen=True):
    kind: Annotated[
        Literal["ppo", "heuristic", "fixed", "random", "no_growth"],
        Meta(description="who decides: PPO, or a rule to compare it with"),
    ] = "ppo"
    hidden: Annotated[int, _count("width of the LSTM and its heads", ge=8, le=4096)] = 64


class PPOConfig(Section, frozen=True):
    learning_rate: Annotated[float, _number("Adam", le=1.0)] = 1e-3
    gamma: Annotated[float, _number("discount", le=1.0)] = 1.0
    gae_lambda: Annotated[float, _number("GAE lambda", le=1.0)] = 0.95
    clip: Annotated[float, _number("clip of the probability ratio", ge=0.01, le=1.0)] = 0.2
    epochs: Annotated[int, _count("passes over a rollout", le=100)] = 8
    minibatches: Annotated[int, _count("parts of the envs per pass", le=1024)] = 2
    entropy_coefficient: Annotated[float, _number("weight of the entropy bonus", le=1.0)] = 0.05
    value_coefficient: Annotated[float, _number("weight of the value loss", le=10.0)] = 0.5
    max_grad_norm: Annotated[float, _number("gradient clip", ge=1e-6, le=1e6)] = 0.5
    target_kl: Annotated[float, _number("early stop of the passes; 0 = never", le=10.0)] = 0.01


class RewardConfig(Section, frozen=True):
    mode: Annotated[
        Literal["shaped", "sparse", "contribution", "minimal"],
        Meta(description="what is paid; docs/training.md has the components of each"),
    ] = "shaped"
    rent: Annotated[float, _number("cost of added parameters, relative to the host's", le=10.0)] = 0.01
    contribution: Annotated[
        float, _number("shaped, contribution: weight of what seeds contribute", le=10.0)
    ] = 0.2
    stage: Annotated[
        float, _number("shaped, contribution: weight of how far seeds are in their lives", le=10.0)
    ] = 0.2
    shock: Annotated[
        float, _number("contribution: cost of moving alpha, by the square of an epoch's step", le=10.0)
    ] = 0.02
    early_prune: Annotated[
        float, _number("minimal: cost of a seed pruned before it could blend", le=10.0)
    ] = 0.05
    rollback_penalty: Annotated[float, _number("cost of an epoch that the governor undid", le=100.0)] = 0.2


class TelemetryConfig(Section, frozen=True):
    level: Annotated[Literal["OFF", "MINIMAL", "NORMAL", "DEBUG"], Meta(description="what is collected")] = (
        "NORMAL"
    )
    budget: Annotated[
        float,
        _number(
            "share of the time for drift, and layers at level DEBUG; past it they are seen less often",
            le=1.0,
            ge=1e-6,
        ),
    ] = 0.01
    stride: Annotated[
        int, _count("they are seen every so many epochs whatever it costs; 0 = by the budget", ge=0)
    ] = 0
    debug_every: Annotated[
        int,
        _count("rounds from one that begins at level DEBUG to the next, from the first on; 0 = none", ge=0),
    ] = 0
    debug_epochs: Annotated[int, _count("epochs of such a round at level DEBUG")] = 1
    escalate_on: Annotated[
        Literal["off", "warning", "critical"],
        Meta(description="severity from which an anomaly has its env's, or all, layers collected"),
    ] = "critical"
    escalate_epochs: Annotated[int, _count("epochs for which it has")] = 5
    escalate_share: Annotated[
        float, _number("of a round's epochs, at most, that are collected for anomalies", le=1.0)
    ] = 0.25


class ProfilerConfig(Section, frozen=True):
    rounds: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...],
        Meta(max_length=100, description="of this start, from 1, whose end is recorded, PPO update included"),
    ] = ()
    epochs: Annotated[int, _count("last epochs of such a round that are recorded")] = 2


class CheckpointConfig(Section, frozen=True):
    keep: Annotated[int, _count("newest checkpoints kept, beside the best", le=1000)] = 3
    every_seconds: Annotated[
        int, _count("after which one is saved within an episode, too; 0 = at rounds only", ge=0, le=86_400)
    ] = 600


class JournalConfig(Section, frozen=True):
    segment_bytes: Annotated[
        int, _count("size at which a segment is closed and compressed", ge=65_536, le=2**40)
    ] = 64 * 1024 * 1024
    segment_seconds: Annotated[int, _count("seconds after which it is, too", le=31_536_000)] = 3600
    keep_bytes: Annotated[
        int, _count("of compressed segments; the oldest go; 0 = all are kept", ge=0, le=2**60)
    ] = 0


class WireConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            pattern=r"^(tcp://.+)?$(?!\n)",
            description="tcp://HOST:PORT to listen on, too, for authorized keys; empty = on no port",
        ),
    ] = ""


class Config(Section, frozen=True):
    """Everything `esper-daemon start` can be told."""

    seed: Annotated[int, _count("of everything random", ge=0, le=2**31 - 1)] = 1
    rounds: Annotated[int, _count("rounds to train; 0 = until stopped", ge=0)] = 0
    device: Annotated[
        str, Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    ] = "auto"
    episode_epochs: Annotated[int, _count("epochs of an episode", ge=2, le=100_000)] = 24
    task: TaskConfig = field(default_factory=TaskConfig)
    host: HostConfig = field(default_factory=HostConfig)
    envs: EnvsConfig = field(default_factory=EnvsConfig)
    amp: AmpConfig = field(default_factory=AmpConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    cuda: CudaConfig = field(default_factory=CudaConfig)
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    wire: WireConfig = field(default_factory=WireConfig)
