"""Shared batches give what separate ones in the same order give; only the first convolution is another."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.data.batches import ALL_ENVS
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.measurements import Measurements
from tests.trainer.hosts.plots import config, every_state, plant, tiny

torch.set_num_threads(1)

ENVS = 6


def population(*, shared: bool, size: int = 0, augment: tuple[str, ...] = ()) -> Population:
    cfg = config(ENVS, task__shared_batches=shared, task__augment=augment, envs__group_size=size)
    made = Population(cfg, tiny(), "cpu", dtype=torch.float64)
    plant(made, {name: column[20 : 20 + ENVS] for name, column in every_state().items()})
    return made


def epochs(made: Population) -> list[Measurements]:
    return [made.run_epoch(1, epoch).measurements for epoch in range(2)]


def assert_same(one: Population, other: Population) -> None:
    for a, b in zip(epochs(one), epochs(other), strict=True):
        for name, values in vars(a).items():
            torch.testing.assert_close(values, getattr(b, name), rtol=1e-5, atol=1e-6, equal_nan=True)
    states = one.state_dict()["weights"], other.state_dict()["weights"]
    for name, weight in states[0].items():
        torch.testing.assert_close(weight, states[1][name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("augment", [(), ("crop", "flip")])
def test_shared_batches_equal_separate_ones_in_the_same_order(augment: tuple[str, ...]) -> None:
    shared, separate = population(shared=True, augment=augment), population(shared=False, augment=augment)
    for group in separate.groups:
        group.batches._walkers = torch.full_like(group.envs, ALL_ENVS)
        x, _ = group.batches.at(1, 0)
        assert x.shape[1] == 2 * ENVS
    assert shared.groups[0].batches.at(1, 0)[0].shape[1] == 2
    assert_same(shared, separate)


def test_shared_batches_do_not_depend_on_the_grouping() -> None:
    assert_same(population(shared=True), population(shared=True, size=2))
