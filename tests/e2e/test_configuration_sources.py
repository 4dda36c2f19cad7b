"""A run's record of where each of its options came from, which a resumed run goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from esper_overwatch.trainer.config.load import OPTIONS

from .conftest import House

FILE = """
episode_epochs = 30

[task]
batch_size = 8
batches_per_epoch = 9

[envs]
count = 3
group_size = 2
"""
ENVIRONMENT = {"ESPER_TASK_BATCHES_PER_EPOCH": "2", "ESPER_ENVS_COUNT": "2", "ESPER_EPISODE_EPOCHS": "20"}
SETS = ("--set", "episode_epochs=6", "--set", "ppo.minibatches=2", "--set", "policy.kind=fixed")
GIVEN = {
    "rounds": (1, "--set"),
    "episode_epochs": (6, "--set"),
    "ppo.minibatches": (2, "--set"),
    "policy.kind": ("fixed", "--set"),
    "envs.count": (2, "environment ESPER_ENVS_COUNT"),
    "task.batches_per_epoch": (2, "environment ESPER_TASK_BATCHES_PER_EPOCH"),
    "task.batch_size": (8, "file {file}"),
    "envs.group_size": (2, "file {file}"),
    "task.dataset": ("text", "preset text"),
    "host.family": ("transformer", "task"),
    "host.learning_rate": (0.5, "task"),
    "seeds.blueprints": (["norm", "lora", "attention", "mlp"], "task"),
}
"""By key its value, and the source that won."""


@pytest.mark.slow
def test_a_resumed_run_keeps_where_its_options_came_from(house: House) -> None:
    file = house.home.parent / "mine.toml"
    file.write_text(FILE, encoding="utf-8")
    house.environment |= ENVIRONMENT
    words = ("--preset", "text", "--config", str(file), "--rounds", "1", *SETS)
    started = house.daemon("start", "r", *words)
    assert started.returncode == 0, started.stderr
    recorded = (house.run_folder("r") / "config.sources.json").read_bytes()
    given = {key: source.format(file=file) for key, (_, source) in GIVEN.items()}
    assert json.loads(recorded) == {**dict.fromkeys(OPTIONS, "default"), **given}
    config = json.loads((house.run_folder("r") / "config.json").read_bytes())
    assert values(config, GIVEN) == {key: value for key, (value, _) in GIVEN.items()}

    file.unlink()
    for variable in ENVIRONMENT:
        del house.environment[variable]
    resumed = house.daemon("start", "--resume", "r", "--rounds", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert [e["data"].get("resumed_round") for e in house.journal("r", "run.started")] == [None, 1]
    assert (house.run_folder("r") / "config.sources.json").read_bytes() == recorded
    again = json.loads((house.run_folder("r") / "config.json").read_bytes())
    assert again == {**config, "rounds": 2}


def values(config: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Of a nested configuration, by dotted key."""
    return {key: reduce(getitem, key.split("."), config) for key in keys}
