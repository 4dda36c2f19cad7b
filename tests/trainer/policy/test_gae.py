"""Advantages against a loop that follows the definition, one env and one step at a time."""

from __future__ import annotations

import pytest
import torch

from trainer.policy.gae import gae


def naive(
    reward: list[float], value: list[float], ends: list[bool], final: list[float], gamma: float, lam: float
) -> list[float]:
    """sum_k (gamma lam)^k delta_{t+k} up to the end of the episode that t is in."""
    t_max = len(reward)
    advantages = []
    for t in range(t_max):
        advantage, weight = 0.0, 1.0
        for k in range(t, t_max):
            following = final[k] if ends[k] else value[k + 1]
            advantage += weight * (reward[k] + gamma * following - value[k])
            weight *= gamma * lam
            if ends[k]:
                break
        advantages.append(advantage)
    return advantages


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_definition_with_ends_and_cut_offs(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    t, n = 17, 5
    reward, value = (torch.randn(t, n, generator=g, dtype=torch.float64) for _ in range(2))
    ends = torch.rand(t, n, generator=g) < 0.2
    ends[-1] = True
    cut_off = torch.rand(t, n, generator=g) < 0.5
    final = torch.randn(t, n, generator=g, dtype=torch.float64) * cut_off
    gamma, lam = torch.rand(2, generator=g, dtype=torch.float64).tolist()
    advantage, returns = gae(reward, value, gamma=gamma, lam=lam, ends_TN=ends, final_value_TN=final)
    for env in range(n):
        columns = (x[:, env].tolist() for x in (reward, value, ends, final))
        expected = torch.tensor(naive(*columns, gamma, lam), dtype=torch.float64)
        torch.testing.assert_close(advantage[:, env], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(returns, advantage + value)


def test_without_ends_the_last_step_is_the_end() -> None:
    reward, value = torch.ones(4, 1), torch.zeros(4, 1)
    _, returns = gae(reward, value, gamma=1.0, lam=1.0)
    assert returns.flatten().tolist() == [4, 3, 2, 1]


def test_a_cut_off_episode_is_worth_what_was_to_come() -> None:
    reward, value = torch.zeros(3, 2), torch.zeros(3, 2)
    ends = torch.tensor([[False, False], [True, True], [True, True]])
    final = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0]])
    _, returns = gae(reward, value, gamma=0.5, lam=1.0, ends_TN=ends, final_value_TN=final)
    assert returns[:, 0].tolist() == [1.25, 2.5, 0.0]
    assert returns[:, 1].tolist() == [0.0, 0.0, 0.0]
