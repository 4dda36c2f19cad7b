"""Which hosts learn which tasks, and what of the configuration follows from that."""

from __future__ import annotations

import msgspec

from ..config import Config, HostConfig, SeedsConfig
from ..data.task import Kind, Task
from ..seeds.catalogue import BUILT_IN, Family, blueprint
from ..settings import ConfigError
from .cnn import CNN
from .model import HostModel
from .seeding import SeedPool
from .transformer import Transformer

FAMILY: dict[Kind, Family] = {"images": "cnn", "text": "transformer"}
LEARNING_RATE = {"pointwise": 0.5, "attending": 0.2}
"""Of a transformer without and with heads, in the place of the default, which is a convolutional host's."""


def fitted(config: Config, task: Task) -> Config:
    """The configuration with what is left to the task decided: the family, and the defaults that go with it.

    Raises:
        ConfigError: the task does not go with something that was asked for.
    """
    family, kind = FAMILY[task.kind], task.kind
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
        rate = LEARNING_RATE["attending" if host.heads else "pointwise"]
        host = msgspec.structs.replace(host, learning_rate=rate)
    if family == "transformer" and seeds.blueprints == SeedsConfig().blueprints:
        seeds = msgspec.structs.replace(seeds, blueprints=tuple(BUILT_IN[family]))
    return msgspec.structs.replace(config, host=host, seeds=seeds)


def _check_transformer(host: HostConfig) -> None:
    if host.heads and host.width % host.heads:
        raise ConfigError(f"host.width = {host.width}: must be a multiple of host.heads = {host.heads}")
    if not host.heads and not host.mlp:
        raise ConfigError("host.heads = 0 and host.mlp = 0: a block needs one of them")


def build(config: Config, task: Task) -> tuple[HostModel, SeedPool]:
    """The architecture for a task and the seeds that its slots can hold.

    Raises:
        BlueprintError: a blueprint is unknown or does not fit the host.
        PluginError: a package's blueprint cannot be used.
    """
    family = FAMILY[task.kind]
    model = _model(config.host, family, task)
    kinds = [blueprint(name, family) for name in config.seeds.blueprints]
    return model, SeedPool(model, kinds, config.task.batch_size)


def _model(host: HostConfig, family: Family, task: Task) -> HostModel:
    if family == "cnn":
        return CNN(host.channels, host.kernel, task.shape, task.classes)
    return Transformer(host.width, host.depth, host.heads, host.mlp, task.shape[1], task.classes)
