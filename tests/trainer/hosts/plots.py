"""Populations with seeds in every state, for tests."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage, Style
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.dataset import Dataset, Split
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.seeds.image_blueprints import BLUEPRINTS

TABLE = ("stage", "pruning", "style", "blueprint", "alpha")
STATES = (
    (Stage.DORMANT, False, 0.0),
    (Stage.GERMINATED, False, 0.0),
    (Stage.TRAINING, False, 0.0),
    (Stage.BLENDING, False, 0.0),
    (Stage.BLENDING, False, 0.37),
    (Stage.BLENDING, True, 0.37),
    (Stage.HOLDING, False, 1.0),
    (Stage.FOSSILIZED, False, 1.0),
    (Stage.EMBARGOED, False, 0.0),
)


def tiny(classes: int = 5, shape: tuple[int, int, int] = (2, 8, 8), train: int = 50) -> Dataset:
    """Random images with random labels."""

    def split(part: int, count: int) -> Split:
        pixels = rng.uniform(rng.key(9, rng.Purpose.SYNTHETIC, part), count * shape[0] * shape[1] * shape[2])
        labels = torch.arange(count) % classes
        return Split((pixels * 256).to(torch.uint8).view(count, *shape), labels)

    return Dataset.of("tiny", classes, split(1, train), split(2, 23), split(3, 17))


def config(n: int, channels: tuple[int, ...] = (8, 4, 16), **changes: Any) -> Config:
    """A small run with all blueprints; `changes` by dotted name with __ for the dot."""
    tree: dict[str, Any] = {
        "seed": 5,
        "episode_epochs": 12,
        "task": {"batch_size": 6, "batches_per_epoch": 3},
        "host": {"channels": channels, "kernel": 3},
        "envs": {"count": n, "threads": 1},
        "seeds": {"blueprints": list(BLUEPRINTS)},
    }
    for name, value in changes.items():
        *section, field = name.split("__")
        (tree.setdefault(section[0], {}) if section else tree)[field] = value
    return msgspec.convert(tree, Config, strict=False)


def every_state(blueprints: int = len(BLUEPRINTS), slots: int = 3) -> dict[str, Tensor]:
    """Columns of a slot table [N, slots] in which each state x blueprint x style occurs."""
    cells = list(product(STATES, range(blueprints), Style))
    cells = [cells[(i * 47) % len(cells)] for i in range(-(-len(cells) // slots) * slots)]
    columns = {
        "stage": [int(state[0]) for state, _, _ in cells],
        "pruning": [state[1] for state, _, _ in cells],
        "alpha": [state[2] for state, _, _ in cells],
        "blueprint": [b if state[0] != Stage.DORMANT else -1 for state, b, _ in cells],
        "style": [int(style) for _, _, style in cells],
    }
    return {name: torch.tensor(values).view(-1, slots) for name, values in columns.items()}


def plant(population: Population, columns: dict[str, Tensor], round_: int = 1) -> None:
    """Put seeds with arbitrary weights and momentum into the slots of a fresh population."""
    population.begin_episode(round_)
    table = population.table
    for name, values in columns.items():
        getattr(table, name).copy_(values)
    population.set_topology(table.stage, table.blueprint, table.style)
    state = population.state_dict()
    position = 0
    for slot in range(len(population.slots)):
        for module in [*(kind.name for kind in population.pool.kinds), "gate"]:
            name = population.pool.name(slot, module)
            here, learns = (
                part[name] for part in (population.pool.owners(table), population.pool.learners(table))
            )
            weight, momentum = state["weights"][name], state["momentum"][name]
            position += 1
            keys = rng.key(8, rng.Purpose.SEED, torch.arange(len(here)), position)
            noise = rng.normal(keys, weight.shape[1], weight.dtype)
            weight.copy_(torch.where(here.unsqueeze(1), 0.4 * noise, 0.0))
            momentum.copy_(torch.where(learns.unsqueeze(1), 0.01 * noise, 0.0))
    population.load_state_dict(state)


def rows(columns: dict[str, Tensor], index: list[int]) -> dict[str, Tensor]:
    """The table of some envs only."""
    return {name: values[index] for name, values in columns.items()}
