"""Contributions within a budget of counted work: the stalest first, none forgotten."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from esper_overwatch.protocol.messages.vocabulary import BLENDED
from esper_overwatch.trainer.hosts.contribution_schedule import select_contributions, select_pairs
from esper_overwatch.trainer.hosts.population import Population
from tests.cases import nightly

from .plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
DATA = tiny()
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5))


@given(shape=SHAPES, budget=st.floats(0.01, 6.0), data=st.data())
def test_it_keeps_within_the_budget_and_forgets_nobody(
    shape: tuple[int, int], budget: float, data: st.DataObject
) -> None:
    n, slots = shape
    blended = data.draw(arrays.arrays(np.bool_, shape))
    age = data.draw(arrays.arrays(np.int64, shape, elements=st.integers(-1, 4)))
    work = np.broadcast_to(slots - np.arange(slots), shape)
    allowed = budget * n * (slots + 1)
    last = np.zeros(shape, dtype=np.int64)
    for epoch in range(1, n * slots + 1):
        chosen = select_contributions(blended, age, budget)
        assert not (chosen & ~blended).any()
        assert work[chosen].sum() <= allowed or chosen.sum() == 1
        left_out = blended & ~chosen
        if chosen.any() and left_out.any():
            staleness = np.where(age < 0, math.inf, age)
            assert staleness[chosen].min() >= staleness[left_out].max()
            assert work[chosen].sum() + work[left_out].max() > allowed
        last[chosen] = epoch
        age = np.where(chosen, 0, np.where(age >= 0, age + 1, -1))
    assert (last[blended] > 0).all()


def test_contribution_budget_measures_between_one_and_all() -> None:
    blended = np.ones((4, 3), dtype=np.bool_)
    never = np.full((4, 3), -1)
    assert select_contributions(blended, never, 1.5).all(), "(3 + 2 + 1) / 4 blocks for each host"
    assert select_contributions(blended, never, 1.4).sum() < 12
    assert select_contributions(blended, never, 0.01).sum() == 1


@given(shape=SHAPES, budget=st.floats(0.01, 6.0), data=st.data())
def test_pairs_take_turns_within_what_is_left(
    shape: tuple[int, int], budget: float, data: st.DataObject
) -> None:
    n, slots = shape
    measured = data.draw(arrays.arrays(np.bool_, shape))
    work = (slots - np.arange(slots))[measured.nonzero()[1]].sum()
    possible = np.triu(measured[:, :, None] & measured[:, None, :], k=1)
    had_turn = np.zeros_like(possible)
    for epoch in range(slots * slots):
        chosen = select_pairs(measured, epoch, budget)
        assert not (chosen & ~possible).any()
        spent = (slots - chosen.nonzero()[2]).sum()
        assert spent == 0 or work + spent <= budget * n * (slots + 1)
        had_turn |= chosen
    if n == 1 and work + slots <= budget * (slots + 1):
        assert np.array_equal(had_turn, possible)


def test_default_budget_measures_every_pair_within_three_epochs() -> None:
    measured = np.ones((8, 3), dtype=np.bool_)
    turns = [select_pairs(measured, epoch, 2.0).all(0) for epoch in (4, 5, 6)]
    assert np.logical_or.reduce(turns)[np.triu_indices(3, 1)].all()


def grown(budget: float, group_size: int = 0) -> Population:
    """Seven hosts with seeds in many states."""
    cfg = config(7, validation__counterfactual_budget=budget, envs__group_size=group_size)
    population = Population(cfg, DATA, "cpu")
    plant(population, rows(every_state(), list(range(0, 63, 9))))
    return population


def advance(population: Population, epochs: range) -> list[torch.Tensor]:
    measured = []
    for epoch in epochs:
        table = population.table
        columns = (table.stage, table.blueprint, table.style, table.contribution_age)
        population.set_topology(*(column.numpy() for column in columns))
        measured.append(population.run_epoch(1, epoch).measurements.contribution)
    return measured


@pytest.mark.slow
def test_unmeasured_contributions_keep_their_value_and_age() -> None:
    full, little = grown(100.0), grown(0.25)
    all_of_them, some = advance(full, range(6)), advance(little, range(6))
    blended = torch.isin(full.table.stage, torch.tensor(BLENDED))
    last = torch.full_like(little.table.contribution, math.nan)
    age = torch.full_like(little.table.contribution_age, -1)
    for everything, measured in zip(all_of_them, some, strict=True):
        fresh = ~measured.isnan()
        assert torch.equal(~everything.isnan(), blended)
        assert 0 < fresh.sum() < blended.sum()
        assert torch.equal(measured[fresh], everything[fresh])
        last[fresh] = measured[fresh]
        age = torch.where(fresh, 0, torch.where(age >= 0, age + 1, -1))
    torch.testing.assert_close(little.table.contribution, last, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(little.table.contribution_age, age)
    assert not last[blended].isnan().any(), "each had its turn"


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [nightly(0), nightly(2), 3])
def test_neither_groups_nor_a_resume_change_whose_turn_it_is(group_size: int) -> None:
    whole = advance(grown(0.25), range(6))
    first = grown(0.25, group_size)
    halves = advance(first, range(3))
    second = grown(0.25, group_size)
    second.load_state_dict(first.state_dict())
    halves += advance(second, range(3, 6))
    for a, b in zip(whole, halves, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
