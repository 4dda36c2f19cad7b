"""Advantages and baselines against loops that follow the definition, one env and one step at a time."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.policy.gae import gae, subtract_task_baseline


def naive(reward: list[float], value: list[float], gamma: float, lam: float) -> list[float]:
    """sum_k (gamma lam)^k delta_{t+k} up to the end of the episode."""
    following = [*value[1:], 0.0]
    delta = [r + gamma * after - v for r, v, after in zip(reward, value, following, strict=True)]
    return [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))]


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_definition(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    t, n = 17, 5
    reward, value = (torch.randn(t, n, generator=g, dtype=torch.float64) for _ in range(2))
    gamma, lam = torch.rand(2, generator=g, dtype=torch.float64).tolist()
    advantage, returns = gae(reward, value, gamma=gamma, lam=lam)
    for env in range(n):
        expected = torch.tensor(
            naive(reward[:, env].tolist(), value[:, env].tolist(), gamma, lam), dtype=torch.float64
        )
        torch.testing.assert_close(advantage[:, env], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(returns, advantage + value)


def test_the_last_step_is_the_end() -> None:
    reward, value = torch.ones(4, 1), torch.zeros(4, 1)
    _, returns = gae(reward, value, gamma=1.0, lam=1.0)
    assert returns.flatten().tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize("tasks", [[2, 0, 2, 2, 0], [1, 1, 1, 1, 1], [4, 3, 2, 1, 0]])
def test_task_baseline_is_the_mean_of_the_others(tasks: list[int]) -> None:
    g = torch.Generator().manual_seed(3)
    advantage = torch.randn(7, len(tasks), generator=g, dtype=torch.float64)
    found = subtract_task_baseline(advantage, torch.tensor(tasks))
    for env, task in enumerate(tasks):
        others = [i for i, other in enumerate(tasks) if other == task and i != env]
        for step in range(7):
            baseline = sum(float(advantage[step, i]) for i in others) / max(1, len(others))
            assert float(found[step, env]) == pytest.approx(float(advantage[step, env]) - baseline, abs=1e-12)
