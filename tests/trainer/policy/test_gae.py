"""Advantages and baselines against loops that follow the definition, one env and one step at a time."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.policy.gae import advantages, gae, subtract_copies


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


def test_decision_earns_what_comes_until_the_next() -> None:
    g = torch.Generator().manual_seed(1)
    reward, gamma, epochs = torch.rand(9, 4, generator=g, dtype=torch.float64), 0.9, (1, 4, 5)
    nothing = torch.zeros(9, 4, dtype=torch.float64)
    _, returns = advantages(reward, nothing, gamma, 1.0, epochs)
    for row, epoch in enumerate(epochs):
        expected = sum(gamma ** (t - epoch) * reward[t] for t in range(epoch, 9))
        torch.testing.assert_close(returns[row], expected, rtol=1e-12, atol=1e-12)
    value = torch.rand(9, 4, generator=g, dtype=torch.float64)
    one_step, _ = advantages(reward, value, gamma, 0.0, epochs)
    earned = sum(gamma ** (t - 1) * reward[t] for t in range(1, 4))
    torch.testing.assert_close(one_step[0], earned + gamma**3 * value[4] - value[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("copies", [1, 2, 3, 6])
def test_baseline_is_the_mean_of_the_other_copies(copies: int) -> None:
    advantage = torch.randn(7, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = subtract_copies(advantage, copies)
    for env in range(6):
        others = [i for i in range(6) if i // copies == env // copies and i != env]
        baseline = advantage[:, others].mean(1) if others else torch.zeros(7, dtype=torch.float64)
        torch.testing.assert_close(found[:, env], advantage[:, env] - baseline, rtol=1e-12, atol=1e-12)
