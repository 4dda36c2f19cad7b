"""Rewards and Shapley values of real episodes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.reward.modes import MODES
from tests.cases import nightly
from tests.trainer.hosts.plots import config as tiny_config
from tests.trainer.hosts.plots import every_state, plant, rows, tiny
from tests.trainer.oracle import env_from
from tests.trainer.test_governor import SETS, play

torch.set_num_threads(1)


@pytest.mark.parametrize("mode", ["shaped", *(nightly(mode) for mode in sorted(MODES) if mode != "shaped")])
def test_components_sum_to_the_reward_of_every_epoch(mode: str) -> None:
    config = settings.load(sets=[*SETS, f"reward.mode={mode}", "policy.kind=random"])
    trainer, frames = play(config=config)
    outcomes = [frame for frame in frames if "reward" in frame]
    assert len(outcomes) == config.episode_epochs
    for epoch, frame in enumerate(outcomes):
        components = np.stack([values for name, values in frame.items() if name.startswith("reward.")])
        np.testing.assert_allclose(components.sum(0), frame["reward"], atol=1e-6)
        np.testing.assert_array_equal(trainer.rollout.reward[epoch].numpy(), frame["reward"])
    rents = [frame["reward.rent"] for frame in outcomes if "reward.rent" in frame]
    assert not rents or any(rent.any() for rent in rents)


DATA = tiny()


@pytest.mark.parametrize("group_size", [0, 2])
def test_coalitions_are_what_modules_without_those_seeds_score(group_size: int) -> None:
    """Shapley values of planted hosts, from sequential modules in float64 and all orders of their seeds."""
    picked = list(range(0, 63, 9))
    cfg = tiny_config(len(picked), envs__group_size=group_size)
    population = Population(cfg, DATA, "cpu", dtype=torch.float64)
    plant(population, rows(every_state(), picked))
    population.run_epoch(1, 0)
    population.test()
    found = population.shapley(1)
    state, table = population.state_dict(), population.table
    worth: dict[tuple[int, frozenset[int]], float] = {}
    steps = cfg.episode_epochs * cfg.task.batches_per_epoch
    indices = [
        torch.cat([group.batches.indices(1, step) for group in population.groups])
        for step in range(steps - cfg.validation.calibration_batches, steps)
    ]

    def without(env: int, absent: set[int]) -> float:
        if (env, frozenset(absent)) not in worth:
            oracle, _ = env_from(cfg, DATA, population, state, env)
            for slot in absent:
                oracle.seed.pop(str(slot))
            oracle.measure([oracle.inputs(DATA.train, index[env]) for index in indices])
            worth[env, frozenset(absent)] = oracle.validate(DATA.val)[1]
        return worth[env, frozenset(absent)]

    for env in range(len(picked)):
        seeds = [slot for slot in range(3) if int(table.stage[env, slot]) in BLENDED]
        assert found.coalitions[env] == (2 ** len(seeds) if seeds else 0)
        total = dict.fromkeys(seeds, 0.0)
        orders = list(permutations(seeds))
        for order in orders:
            absent = set(seeds)
            for slot in order:
                before = without(env, absent)
                absent = absent - {slot}
                total[slot] += (without(env, absent) - before) / len(orders)
        for slot in range(3):
            if slot in seeds:
                assert found.value[env, slot] == pytest.approx(total[slot], abs=1e-9), (env, slot)
            else:
                assert np.isnan(found.value[env, slot])
    assert np.nanmax(np.abs(found.value)) > 0
    assert (np.isfinite(found.value).sum(1) >= 2).any()
    population.close()


@pytest.mark.slow
def test_sampled_orders_keep_the_sum_and_leave_training_alone() -> None:
    """With a budget too small for all coalitions; nothing that the next epoch depends on changes."""
    cfg = tiny_config(7, validation__shapley_coalitions=4)
    population = Population(cfg, DATA, "cpu")
    columns = rows(every_state(), list(range(0, 63, 9)))
    seeds = columns["blueprint"] >= 0
    columns["stage"], columns["alpha"] = torch.where(seeds, Stage.HOLDING, 0), torch.where(seeds, 1.0, 0.0)
    plant(population, columns)
    for epoch in range(6):
        population.run_epoch(1, epoch)
    population.test()
    before = population.state_dict()
    found = population.shapley(1)
    after = population.state_dict()
    for kind in ("weights", "momentum", "buffers", "table"):
        for name, tensor in before[kind].items():
            torch.testing.assert_close(after[kind][name], tensor, rtol=0, atol=0, equal_nan=True)
    exact = Population(tiny_config(7), DATA, "cpu")
    exact.load_state_dict(before)
    exact.test()
    whole = exact.shapley(1)
    np.testing.assert_allclose(np.nansum(found.value, 1), np.nansum(whole.value, 1), atol=1e-9)
    sampled = found.half_width > 0
    assert sampled.any()
    assert (np.abs(found.value - whole.value)[sampled] <= 3 * found.half_width[sampled]).all()
    population.close()
    exact.close()
