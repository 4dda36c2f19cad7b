"""What is kept of a sick env is what it was like, whoever else is put back later."""

from __future__ import annotations

import math

import pytest
import torch

from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.population import Population

torch.set_num_threads(1)
CONFIG = settings.load(sets=["envs.count=5", "envs.group_size=2", "ppo.minibatches=1", "host.channels=4,8"])


@pytest.fixture
def population() -> Population:
    made = Population(CONFIG, load("digits"), torch.device("cpu"))
    made.begin_episode(1)
    made.snapshot(torch.ones(5, dtype=torch.bool))
    return made


def weight_of(population: Population, env: int) -> torch.Tensor:
    """The first tensor's row of an env."""
    group = next(group for group in population.groups if env in group.envs)
    return next(iter(group.weights.values())).data[env - int(group.envs[0])]


def envs(*which: int) -> torch.Tensor:
    mask = torch.zeros(5, dtype=torch.bool)
    mask[list(which)] = True
    return mask


def test_nothing_is_kept_of_the_well(population: Population) -> None:
    population.restore(envs())
    assert population.failed_env() is None


@pytest.mark.parametrize("env", range(5))
def test_the_rows_are_those_before_the_restore(population: Population, env: int) -> None:
    weight_of(population, env).view(-1)[0] = math.nan
    before = weight_of(population, env).clone()
    population.restore(envs(env))
    population.restore(envs())
    assert weight_of(population, env).isfinite().all()
    found = population.failed_env()
    assert found is not None
    assert found["env"] == env
    name = next(iter(population.groups[0].weights))
    assert torch.equal(found["rows"][f"weights.{name}"][0].isnan(), before.isnan())
    assert torch.equal(found["rows"][f"weights.{name}"][0].nan_to_num(7.0), before.nan_to_num(7.0))
    shapes = {name: rows.shape[0] for name, rows in found["rows"].items()}
    assert set(shapes.values()) == {1}
    assert {"table.stage", "table.alpha"} <= set(shapes)


def test_of_several_the_last_and_of_two_epochs_the_later(population: Population) -> None:
    for env in (0, 3):
        weight_of(population, env).fill_(float(env) + 100)
    population.restore(envs(0, 3))
    weight_of(population, 1).fill_(555.0)
    population.restore(envs(1))
    found = population.failed_env()
    assert found is not None
    assert found["env"] == 1
    name = next(iter(population.groups[0].weights))
    assert (found["rows"][f"weights.{name}"] == 555.0).all()


def test_who_is_not_finite_now_comes_before_who_was(population: Population) -> None:
    population.restore(envs(0))
    weight_of(population, 4).view(-1)[-1] = math.inf
    found = population.failed_env()
    assert found is not None
    assert found["env"] == 4
    assert any(rows.isinf().any() for rows in found["rows"].values())
