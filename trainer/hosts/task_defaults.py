"""The family of hosts that learns a task, and the defaults that follow from it."""

from __future__ import annotations

from esper_overwatch.trainer.compute.convolutions import CONVOLUTIONS, Conv
from esper_overwatch.trainer.compute.execution_plan import Convolution
from esper_overwatch.trainer.config.host_options import HostConfig
from esper_overwatch.trainer.config.load import OPTIONS, SAVED, ConfigError, SourcedConfig
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.task import Kind, Task
from esper_overwatch.trainer.seeds.registry import Family, blueprint
from esper_overwatch.trainer.seeds.text_blueprints import DEFAULT_BLUEPRINTS

from .cnn import CNN
from .model import HostModel
from .resnet import ResNet
from .seed_pool import SeedPool
from .slot_rows import SlotRows
from .transformer import Transformer

FAMILY_OF_KIND: dict[Kind, Family] = {"images": "cnn", "text": "transformer"}
"""Whose blueprints the hosts of a kind take; also the architecture that they have where none is chosen."""
ARCHITECTURES: dict[Kind, tuple[str, ...]] = {"images": ("cnn", "resnet"), "text": ("transformer",)}
"""Architectures that learn a kind."""
TEXT_LEARNING_RATES = {"pointwise": 0.5, "attending": 0.2}
"""Rates of a transformer without and with heads, in place of the default, which suits convolutional hosts."""
MANY_PARAMETERS = 10_000_000
"""Parameters of a host with its seeds from which the log mentions that building them takes long."""
BYTES_PER_PARAMETER = 16
"""Weight, momentum, gradient and the governor's snapshot, in float32."""
MANY_OPERATIONS = 10**12
"""Operations of an epoch of all hosts from which the log mentions them: about a minute of one core."""
OPERATIONS_PER_PRODUCT = 6
"""Multiplication and addition, forward and twice backward."""
OPTIONS_OF_KIND: dict[str, Kind] = {
    "task.augment": "images",
    "host.channels": "images",
    "host.kernel": "images",
    "host.blocks": "images",
    "task.context": "text",
    "task.tokens": "text",
    "task.vocabulary": "text",
    "host.width": "text",
    "host.depth": "text",
    "host.heads": "text",
    "host.mlp": "text",
    "host.tied_head": "text",
    "host.dropout": "text",
}
"""Kind of examples that an option needs; with others it must keep its default."""
OPTIONS_OF_ARCHITECTURE = {"host.kernel": "cnn", "host.blocks": "resnet"}
"""Architecture that an option needs; with others it must keep its default."""


def resolve_task_defaults(sourced: SourcedConfig, name: str, kind: Kind) -> SourcedConfig:
    """Fill in what the configuration leaves to the task: the family of hosts, and its defaults.

    What a source gave stays, also where it is the default's value.

    Args:
        name: of the task.
        kind: what its examples are.

    Raises:
        ConfigError: the task does not go with something that was chosen.
    """
    family = FAMILY_OF_KIND[kind]
    chosen = sourced.config.host.family
    if chosen not in ("auto", *ARCHITECTURES[kind]):
        raise ConfigError(
            f"host.family = {chosen}: {name} is {kind}, which a {' or '.join(ARCHITECTURES[kind])} host "
            f"learns; leave it auto or choose another task.dataset"
        )
    for key, of_kind in OPTIONS_OF_KIND.items():
        if of_kind != kind and _is_chosen(sourced, key):
            raise ConfigError(
                f"{key} ({sourced.sources[key]}): is for {of_kind}, and {name} is {kind}; leave it out"
            )
    if chosen == "auto":
        sourced = sourced.with_task_value("host.family", family)
    for key, architecture in OPTIONS_OF_ARCHITECTURE.items():
        if sourced.config.host.family != architecture and _is_chosen(sourced, key):
            raise ConfigError(
                f"{key} ({sourced.sources[key]}): is for a {architecture} host, and host.family is "
                f"{sourced.config.host.family}; leave it out"
            )
    host = sourced.config.host
    if family == "transformer":
        _check_transformer(host)
        if sourced.config.task.tokens != "bpe" and _is_chosen(sourced, "task.vocabulary"):
            raise ConfigError(
                f"task.vocabulary ({sourced.sources['task.vocabulary']}): is for task.tokens = bpe; "
                "leave it out, or set task.tokens too"
            )
        if sourced.is_open("host.learning_rate"):
            rate = TEXT_LEARNING_RATES["attending" if host.heads else "pointwise"]
            sourced = sourced.with_task_value("host.learning_rate", rate)
        if sourced.is_open("seeds.blueprints"):
            sourced = sourced.with_task_value("seeds.blueprints", DEFAULT_BLUEPRINTS)
    return sourced


def _is_chosen(sourced: SourcedConfig, key: str) -> bool:
    """True if somebody gave the option another value than its default."""
    return sourced.sources[key] != SAVED and sourced.value(key) != OPTIONS[key].default


def _check_transformer(host: HostConfig) -> None:
    if host.heads and host.width % host.heads:
        raise ConfigError(f"host.width = {host.width}: must be a multiple of host.heads = {host.heads}")
    if not host.heads and not host.mlp:
        raise ConfigError("host.heads = 0 and host.mlp = 0: a block needs one of them")


def check_sizes(config: Config, task: Task) -> str | None:
    """Look at sizes before anything is built.

    Returns:
        What to tell where building will take long.

    Raises:
        ConfigError: a batch is larger than the data, or a limit beyond the slots.
        BlueprintError: a blueprint is unknown.
        PluginError: a package's blueprint cannot be used.
    """
    examples = len(task.train) if task.kind == "images" else len(task.train) // task.shape[1] - 1
    if config.task.batch_size > examples:
        raise ConfigError(
            f"task.batch_size = {config.task.batch_size}: {task.name} has {examples} to train on; "
            "choose a smaller one"
        )
    family = FAMILY_OF_KIND[task.kind]
    model = _model(config.host, task, CONVOLUTIONS["grouped"])
    if config.seeds.max_live > len(model.blocks):
        raise ConfigError(
            f"seeds.max_live = {config.seeds.max_live}: the host has {len(model.blocks)} slots; 0 is no limit"
        )
    count = sum(spec.count for spec in model.specs().values())
    for name in config.seeds.blueprints:
        kind = blueprint(name, family)
        for block in model.blocks:
            specs = kind.at(block.channels, block.size).specs(block.channels)
            count += sum(spec.count for spec in specs.values())
    notes = []
    if count >= MANY_PARAMETERS:
        gigabytes = BYTES_PER_PARAMETER * count * config.envs.count / 1e9
        notes.append(
            f"each host has {count / 1e6:.0f} million parameters with one seed of each blueprint in each slot"
            f": building takes minutes, and {config.envs.count} hosts need about {gigabytes:.1f} GB"
        )
    step = OPERATIONS_PER_PRODUCT * model.products * config.task.batch_size
    epoch = step * config.task.batches_per_epoch * config.envs.count
    if epoch >= MANY_OPERATIONS:
        notes.append(
            f"a training step of a host takes {step / 1e9:.0f} billion operations, an epoch of "
            f"{config.envs.count} hosts {epoch / 1e12:.0f} trillion: minutes on a CPU; "
            "task.batches_per_epoch, task.batch_size and envs.count make it less"
        )
    return "; ".join(notes) or None


def build_model(
    config: Config, task: Task, convolution: Convolution = "grouped", *, mixes_precisions: bool = False
) -> tuple[HostModel, SeedPool]:
    """The architecture for a task and the seeds that its slots can hold.

    Args:
        mixes_precisions: whether forward passes run under autocast, which our own kernel does not know.

    Raises:
        BlueprintError: a blueprint is unknown or does not fit the host.
        PluginError: a package's blueprint cannot be used.
    """
    family = FAMILY_OF_KIND[task.kind]
    conv = CONVOLUTIONS[convolution]
    model = _model(config.host, task, conv)
    kinds = [blueprint(name, family) for name in config.seeds.blueprints]
    natively = convolution == "native" and not mixes_precisions
    return model, SeedPool(model, kinds, config.task.batch_size, conv, natively=natively)


def _model(host: HostConfig, task: Task, conv: Conv) -> HostModel:
    model = _architecture(host, task, conv)
    return SlotRows(model, host.slot_rows) if host.slot_rows > 1 else model


def _architecture(host: HostConfig, task: Task, conv: Conv) -> HostModel:
    if host.family == "resnet":
        return ResNet(host.channels, host.blocks, task.shape, task.classes, conv)
    if task.kind == "images":
        return CNN(host.channels, host.kernel, task.shape, task.classes, conv)
    return Transformer(
        host.width,
        host.depth,
        host.heads,
        host.mlp,
        task.shape[1],
        task.classes,
        is_tied=host.tied_head,
        dropout=host.dropout,
    )
