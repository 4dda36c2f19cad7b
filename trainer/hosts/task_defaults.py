"""The family of hosts that learns a task, and the defaults that follow from it."""

from __future__ import annotations

import msgspec

from trainer.compute.execution_plan import Convolution
from trainer.compute.stacked_ops import CONVOLUTIONS, Conv
from trainer.config.load import ConfigError
from trainer.config.schema import Config, HostConfig, SeedsConfig
from trainer.data.task import Kind, Task
from trainer.seeds.registry import BUILT_IN_BLUEPRINTS, Family, blueprint

from .cnn import CNN
from .model import HostModel
from .seed_pool import SeedPool
from .transformer import Transformer

FAMILY_OF_KIND: dict[Kind, Family] = {"images": "cnn", "text": "transformer"}
TEXT_LEARNING_RATES = {"pointwise": 0.5, "attending": 0.2}
"""Of a transformer without and with heads, in the place of the default, which is a convolutional host's."""


def resolve_task_defaults(config: Config, task: Task) -> Config:
    """Fill in what the configuration leaves to the task: the family of hosts, and its defaults.

    Raises:
        ConfigError: the task does not go with something that was asked for.
    """
    family, kind = FAMILY_OF_KIND[task.kind], task.kind
    if config.host.family not in ("auto", family):
        raise ConfigError(
            f"host.family = {config.host.family}: {task.name} is {kind}, which a {family} host learns; "
            f"leave it auto or choose another task.dataset"
        )
    if kind == "text" and config.task.augment:
        raise ConfigError(f"task.augment: is for images, and {task.name} is text; leave it empty")
    if family == "transformer":
        _check_transformer(config.host)
    host, seeds = msgspec.structs.replace(config.host, family=family), config.seeds
    if family == "transformer" and host.learning_rate == HostConfig().learning_rate:
        rate = TEXT_LEARNING_RATES["attending" if host.heads else "pointwise"]
        host = msgspec.structs.replace(host, learning_rate=rate)
    if family == "transformer" and seeds.blueprints == SeedsConfig().blueprints:
        seeds = msgspec.structs.replace(seeds, blueprints=tuple(BUILT_IN_BLUEPRINTS[family]))
    return msgspec.structs.replace(config, host=host, seeds=seeds)


def _check_transformer(host: HostConfig) -> None:
    if host.heads and host.width % host.heads:
        raise ConfigError(f"host.width = {host.width}: must be a multiple of host.heads = {host.heads}")
    if not host.heads and not host.mlp:
        raise ConfigError("host.heads = 0 and host.mlp = 0: a block needs one of them")


def build_model(
    config: Config, task: Task, convolution: Convolution = "grouped"
) -> tuple[HostModel, SeedPool]:
    """The architecture for a task and the seeds that its slots can hold.

    Raises:
        BlueprintError: a blueprint is unknown or does not fit the host.
        PluginError: a package's blueprint cannot be used.
    """
    family = FAMILY_OF_KIND[task.kind]
    conv = CONVOLUTIONS[convolution]
    model = _model(config.host, family, task, conv)
    kinds = [blueprint(name, family) for name in config.seeds.blueprints]
    return model, SeedPool(model, kinds, config.task.batch_size, conv)


def _model(host: HostConfig, family: Family, task: Task, conv: Conv) -> HostModel:
    if family == "cnn":
        return CNN(host.channels, host.kernel, task.shape, task.classes, conv)
    return Transformer(host.width, host.depth, host.heads, host.mlp, task.shape[1], task.classes)
