"""Running statistics equal those of all data at once, however it arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.policy.running_norm import EPISODE_PARTS, EpochNorm, RunningNorm

numbers = st.floats(-1e3, 1e3, allow_nan=False) | st.just(float("nan"))


@given(st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), min_size=1, max_size=6))
def test_batches_add_up(batches: list[list[tuple[float, float]]]) -> None:
    norm = RunningNorm(2)
    for batch in batches:
        norm.update(torch.tensor(batch, dtype=torch.float64))
    data = np.array([row for batch in batches for row in batch])
    for column in range(2):
        known = data[:, column][~np.isnan(data[:, column])]
        assert norm.count[column] == len(known)
        if len(known):
            np.testing.assert_allclose(norm.mean[column], known.mean(), atol=1e-9)
            np.testing.assert_allclose(norm.m2[column], known.var() * len(known), atol=1e-6, rtol=1e-9)


def test_nothing_known_changes_nothing_and_absent_stays_absent() -> None:
    norm = RunningNorm(2)
    x = torch.tensor([[1.0, torch.nan]])
    assert norm(x)[0, 0] == 1
    norm.update(x)
    norm.update(torch.tensor([[3.0, torch.inf]]))
    z = norm(torch.tensor([[3.0, torch.nan]]))
    assert z[0, 0] == 1
    assert z[0, 1].isnan()
    assert norm.mean[1] == norm.count[1] == 0


def test_outliers_are_limited() -> None:
    norm = RunningNorm(1)
    norm.update(torch.randn(100, 1))
    assert norm(torch.tensor([[1e9]])).item() == 8


def test_each_part_of_an_episode_has_its_own_scale() -> None:
    """Two hosts a hundredth apart, while both change by one: over all epochs they would look the same."""
    norm, epochs = EpochNorm(1), 6
    time = (torch.arange(epochs) / epochs).unsqueeze(1).expand(epochs, 2)
    x = (1 - time + torch.tensor([0.0, 0.01])).unsqueeze(-1)
    norm.update(x, time)
    torch.testing.assert_close(norm(x, time)[..., 0], torch.tensor([[-1.0, 1.0]]).expand(epochs, 2))
    assert norm(torch.tensor([[torch.nan]]), torch.tensor([0.5])).isnan().all()


@pytest.mark.parametrize("epochs", [3, EPISODE_PARTS, 100])
def test_parts_are_known_for_episodes_of_any_length(epochs: int) -> None:
    norm, time = EpochNorm(1), torch.arange(epochs) / epochs
    x = torch.randn(epochs, 1, generator=torch.Generator().manual_seed(1))
    norm.update(x, time)
    assert int(norm.norm.count.sum()) == epochs
    if epochs <= EPISODE_PARTS:
        assert norm.norm.count.max() == 1
        assert (norm(x, time) == 0).all()
