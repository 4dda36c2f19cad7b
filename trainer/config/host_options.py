"""Options of the hosts: architecture, optimiser, and how they are computed."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import Section, count, number

CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]


class HostConfig(Section, frozen=True):
    family: Annotated[
        Literal["auto", "cnn", "resnet", "transformer"],
        Meta(
            description=(
                "Architecture of the hosts; cnn or resnet for images, transformer for text; "
                "auto = cnn for images, transformer for text"
            )
        ),
    ] = "auto"
    channels: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1024)], ...],
        Meta(
            min_length=1,
            max_length=10,
            description="Channels of each block of a cnn host or stage of a resnet host",
        ),
    ] = (8, 8, 8)
    kernel: Annotated[
        Literal[1, 3],
        Meta(description="Side of a cnn host's convolution kernels in pixels; 1 = blind to shapes"),
    ] = 1
    blocks: Annotated[
        int,
        count("Residual blocks in each stage of a resnet host; three stages of 3 are ResNet-20", le=64),
    ] = 3
    width: Annotated[
        int, count("Width of a transformer host's residual stream in channels", ge=2, le=4096)
    ] = 32
    depth: Annotated[int, count("Number of blocks of a transformer host", le=10)] = 3
    heads: Annotated[
        int, count("Attention heads per block of a transformer host; 0 = no attention", ge=0, le=64)
    ] = 0
    mlp: Annotated[
        int,
        count("Hidden units of the MLP in each block of a transformer host; 0 = no MLP", ge=0, le=16_384),
    ] = 32
    tied_head: Annotated[
        bool, Meta(description="Whether a transformer host's head is the matrix of its token embeddings")
    ] = False
    dropout: Annotated[
        float,
        number(
            "Share that a transformer host drops, in training, of its embeddings and of what attention and "
            "MLP add to its stream; 0 = nothing",
            le=0.9,
        ),
    ] = 0.0
    slot_rows: Annotated[
        int,
        count(
            "Slots in series behind each block of a host, or stage of a resnet host: r0c0, r1c0 and so on",
            le=3,
        ),
    ] = 1
    learning_rate: Annotated[
        float,
        number(
            "Learning rate of hosts, and of seeds without their own (SGD); "
            "where none is given, a text brings 0.5, 0.2 with heads",
            le=10.0,
        ),
    ] = 0.05
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        Meta(
            description=(
                "Course to 0 of the learning rates of hosts and seeds over an episode, after their warm-up"
            )
        ),
    ] = "constant"
    warmup_epochs: Annotated[
        int, count("Epochs of an episode over which the learning rates of hosts and seeds grow", ge=0)
    ] = 0
    momentum: Annotated[float, number("Momentum of hosts and seeds (SGD)", le=0.999)] = 0.9
    weight_decay: Annotated[
        float,
        number("Weight decay of a host's kernels and matrices, as in torch.optim.SGD; 0 = none", le=1.0),
    ] = 0.0
    max_grad_norm: Annotated[
        float, number("L2 norm to which each host's gradient is clipped; 0 = not clipped", le=1e6)
    ] = 0.0


class EnvsConfig(Section, frozen=True):
    count: Annotated[int, count("Number of envs: hosts that are trained side by side", le=4096)] = 8
    copies: Annotated[
        int,
        count(
            "Copies of each host among the envs: same task, weights and batches, so that they differ only by "
            "what is decided; PPO compares each with the others. Divides envs.count",
            le=4096,
        ),
    ] = 1
    group_size: Annotated[
        int,
        count("Hosts per stacked program; 0 = by size and cores on a CPU, measured on a GPU", ge=0, le=4096),
    ] = 0
    threads: Annotated[
        int, count("Worker threads that train host groups on a CPU; 0 = one per core", ge=0, le=64)
    ] = 0
    convolution: Annotated[
        Literal["auto", "grouped", "native", "unfold"],
        Meta(
            description=(
                "How hosts and seeds convolve: one grouped convolution of torch, a kernel compiled at the "
                "installation (a CPU's), or unfolded pixels and matrix products; auto = native where it is "
                "there and compile.mode = off, else grouped; on a GPU grouped or unfold, measured"
            )
        ),
    ] = "auto"
    plan: Annotated[
        Literal["auto", "gather", "masked"],
        Meta(
            description=(
                "Which seeds are computed: gather = live ones, masked = as many as a few sizes have room "
                "for; auto = gather, on a GPU with cuda.graphs whichever is measured to be faster"
            )
        ),
    ] = "auto"


class AmpConfig(Section, frozen=True):
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "off"],
        Meta(
            description=(
                "Precision of the hosts' forward passes; off = float32, "
                "auto = bf16 where it is a tenth faster on a GPU"
            )
        ),
    ] = "auto"


class CudaConfig(Section, frozen=True):
    graphs: Annotated[
        bool,
        Meta(
            description=(
                "Whether policy, its minibatches, lifecycle, governor and, with envs.plan=masked, plans, "
                "training steps and validation are replayed as CUDA graphs"
            )
        ),
    ] = True
    tf32: Annotated[
        bool, Meta(description="Whether float32 matrix products and convolutions use TF32 on a GPU")
    ] = True
    deterministic: Annotated[
        bool,
        Meta(
            description=(
                "Whether a GPU uses only algorithms that repeat bit for bit, where torch has them; slower, "
                "and torch warns of those it has not"
            )
        ),
    ] = False
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


class ValidationConfig(Section, frozen=True):
    counterfactual_budget: Annotated[
        float,
        number(
            "Work spent on measuring contributions, and pair interactions with what they leave, as a "
            "multiple of that of validation; the oldest contributions are measured first",
            ge=0.01,
            le=1e3,
        ),
    ] = 2.0
    calibration_batches: Annotated[
        int,
        count("Training batches, the newest, on which statistics of batch norms are measured", le=10_000),
    ] = 2
    shapley_every: Annotated[int, count("Interval in rounds between Shapley analyses; 0 = never", ge=0)] = 1
    shapley_coalitions: Annotated[
        int,
        count(
            "Coalitions measured per env in a Shapley analysis; values are exact where all coalitions fit",
            ge=4,
            le=1_000_000,
        ),
    ] = 64
