"""Shapley values against their definition over all orders, and their estimate against themselves."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.reward.shapley import (
    MIN_ORDERS,
    CoalitionTable,
    Measure,
    MissingCoalition,
    ShapleyValues,
    shapley_values,
)


def game(seed: int) -> Measure:
    """Random worths: seeds that help, harm and need one another; a function of (env, coalition) alone."""

    def measure(envs: np.ndarray, removed: np.ndarray) -> np.ndarray:
        assert len(np.unique(envs << 32 | removed)) == len(envs), "nothing is measured twice in a call"
        key = rng.key(seed, rng.Purpose.SHAPLEY, torch.from_numpy(envs), torch.from_numpy(removed))
        return rng.uniform(key, 1, torch.float64)[:, 0].numpy()

    return measure


def by_definition(measure: Measure, env: int, players: list[int]) -> dict[int, float]:
    """The mean over all k! orders of what each adds."""
    total = dict.fromkeys(players, 0.0)

    def worth(present: set[int]) -> float:
        removed = sum(1 << p for p in players if p not in present)
        return float(measure(np.array([env]), np.array([removed]))[0])

    for order in permutations(players):
        for i, player in enumerate(order):
            total[player] += worth(set(order[: i + 1])) - worth(set(order[:i]))
    return {player: value / math.factorial(len(players)) for player, value in total.items()}


def interactions_by_definition(
    measure: Measure, env: int, players: list[int]
) -> dict[tuple[int, int], float]:
    """The mean over all orders in which two come together, as one, of their second difference."""

    def worth(present: Collection[int]) -> float:
        removed = sum(1 << p for p in players if p not in present)
        return float(measure(np.array([env]), np.array([removed]))[0])

    found = {}
    for i, j in combinations(players, 2):
        total = 0.0
        orders = list(permutations(["pair", *(p for p in players if p not in (i, j))]))
        for order in orders:
            before = {p for p in order[: order.index("pair")] if isinstance(p, int)}
            total += worth(before | {i, j}) - worth(before | {i}) - worth(before | {j}) + worth(before)
        found[i, j] = total / len(orders)
    return found


def keys(n: int, seed: int = 1) -> torch.Tensor:
    return rng.key(seed, rng.Purpose.SHAPLEY, torch.arange(n))


BLENDED = np.array(
    [[0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
    dtype=np.bool_,
)


def check_efficiency(found: ShapleyValues, measure: Measure, blended: np.ndarray) -> None:
    for env, row in enumerate(blended):
        if row.any():
            everyone, nobody = measure(np.array([env] * 2), np.array([0, (1 << np.flatnonzero(row)).sum()]))
            assert np.nansum(found.value[env]) == pytest.approx(everyone - nobody, abs=1e-12)


def test_exact_values_are_the_mean_over_all_orders() -> None:
    measure = game(3)
    found = shapley_values(BLENDED, measure, 32, keys(len(BLENDED)))
    for env, row in enumerate(BLENDED):
        expected = by_definition(measure, env, np.flatnonzero(row).tolist())
        for slot in range(5):
            if row[slot]:
                assert found.value[env, slot] == pytest.approx(expected[slot], abs=1e-12)
                assert found.half_width[env, slot] == 0
            else:
                assert np.isnan(found.value[env, slot])
                assert np.isnan(found.half_width[env, slot])
    assert found.coalitions.tolist() == [0, 2, 4, 8, 16, 32]
    check_efficiency(found, measure, BLENDED)


def test_interactions_equal_their_definition_for_two_to_five() -> None:
    measure = game(8)
    found = shapley_values(BLENDED, measure, 32, keys(len(BLENDED))).interaction
    for env, row in enumerate(BLENDED):
        expected = interactions_by_definition(measure, env, np.flatnonzero(row).tolist())
        assert len(expected) == row.sum() * (row.sum() - 1) // 2
        for (i, j), value in expected.items():
            assert found[env, i, j] == found[env, j, i] == pytest.approx(value, abs=1e-12)
        assert np.isfinite(found[env]).sum() == 2 * len(expected)


def test_redundant_seeds_interact_negatively_and_needy_ones_positively() -> None:
    def measure(envs: np.ndarray, removed: np.ndarray) -> np.ndarray:
        one, two = (removed & 1) == 0, (removed & 2) == 0
        return np.where(envs == 0, one | two, one & two).astype(np.float64)

    found = shapley_values(np.ones((2, 2), dtype=np.bool_), measure, 4, keys(2)).interaction
    assert found[:, 0, 1].tolist() == [-1.0, 1.0]


def test_sampled_envs_have_no_interactions() -> None:
    found = shapley_values(np.ones((1, 6), dtype=np.bool_), game(9), 40, keys(1))
    assert np.isfinite(found.value).all()
    assert np.isnan(found.interaction).all()


def test_random_orders_are_unbiased_within_their_interval() -> None:
    measure, row = game(4), np.ones((1, 5), dtype=np.bool_)
    exact = shapley_values(row, measure, 32, keys(1)).value[0]
    runs = [shapley_values(row, measure, 31, keys(1, seed)) for seed in range(400)]
    values = np.stack([run.value[0] for run in runs])
    half = np.stack([run.half_width[0] for run in runs])
    error = values.std(0, ddof=1) / math.sqrt(len(runs))
    assert (np.abs(values.mean(0) - exact) < 4 * error).all()
    covered = (np.abs(values - exact) <= half).mean()
    assert 0.90 < covered < 0.99, covered
    for run in runs[:5]:
        check_efficiency(run, measure, row)
        assert run.coalitions[0] <= 31


def test_more_orders_narrow_the_interval_within_budget() -> None:
    measure, many = game(5), np.ones((2, 10), dtype=np.bool_)
    narrow, wide = (shapley_values(many, measure, budget, keys(2)) for budget in (900, 60))
    assert narrow.half_width.mean() < 0.4 * wide.half_width.mean()
    assert (wide.coalitions <= 60).all()
    assert (narrow.coalitions <= 900).all()
    least = shapley_values(many, measure, 4, keys(2))
    assert (least.coalitions <= 2 + MIN_ORDERS * 9).all()
    assert (least.half_width > 0).all()


def test_envs_are_independent_and_keys_reproducible() -> None:
    measure, many = game(6), np.ones((3, 7), dtype=np.bool_)
    together = shapley_values(many, measure, 40, keys(3))
    again = shapley_values(many, measure, 40, keys(3))
    np.testing.assert_array_equal(together.value, again.value)
    some = many.copy()
    some[1] = False
    alone = shapley_values(some, measure, 40, keys(3))
    np.testing.assert_array_equal(alone.value[[0, 2]], together.value[[0, 2]])


def test_unmeasured_coalition_is_an_error() -> None:
    worths = CoalitionTable(np.array([0, 2]), np.array([0, 5]), np.array([0.5, 0.25]))
    assert worths.of(np.array([2]), np.array([5])).tolist() == [0.25]
    for env, removed in ((0, 5), (1, 0), (3, 0)):
        with pytest.raises(MissingCoalition, match=f"env {env} without the seeds of slots"):
            worths.of(np.array([env]), np.array([removed]))
