"""Generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438), and copies as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def gae(
    reward_TN: Tensor, value_TN: Tensor, *, gamma: float, lam: float, epochs: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Advantages and the returns that the critic should predict, both [T, N], of episodes of T steps.

    A_t = delta_t + g_t lam A_{t+1}, delta_t = r_t + g_t V(s_{t+1}) - V(s_t); after the last step the
    episode is over, so that both are 0 there: the observation has the time.

    Args:
        reward_TN: reward of the action taken at step t, see `rewards_of_decisions`.
        value_TN: V(s_t), in units of the reward.
        gamma: discount per epoch.
        lam: 0 = one-step differences, 1 = complete returns.
        epochs: of the steps, ascending; g_t = gamma^(epochs to the next). None = one epoch each.
    """
    last = torch.zeros_like(value_TN[0])
    following_TN = torch.cat([value_TN[1:], last[None]])
    advantage_TN = torch.empty_like(value_TN)
    steps = range(len(value_TN)) if epochs is None else epochs
    discounts = [gamma ** (after - before) for before, after in pairwise(steps)] + [gamma]
    for t in range(len(value_TN) - 1, -1, -1):
        delta = reward_TN[t] + discounts[t] * following_TN[t] - value_TN[t]
        last = delta + discounts[t] * lam * last
        advantage_TN[t] = last
    return advantage_TN, advantage_TN + value_TN


def rewards_of_decisions(reward_TN: Tensor, epochs: Sequence[int], gamma: float) -> Tensor:
    """What each of D decisions earns, [D, N]: the rewards up to the next one, discounted to its own epoch.

    Args:
        reward_TN: by epoch.
        epochs: of the decisions, ascending; what comes before the first is earned by none.
    """
    ends = [*epochs[1:], len(reward_TN)]
    earned = []
    for start, stop in zip(epochs, ends, strict=True):
        weights = gamma ** torch.arange(stop - start, dtype=reward_TN.dtype, device=reward_TN.device)
        earned.append(weights @ reward_TN[start:stop])
    return torch.stack(earned)


def subtract_copies(advantage_TN: Tensor, copies: int) -> Tensor:
    """Advantages [T, N], each less the mean of the *other* copies of the same host, at the same step.

    What host an env has drawn decides most of its return, and no action changes it; the critic learns it only
    as the episode goes on. What the other copies got depends on the host and on no action of this env, so
    that the policy's gradient stays unbiased and loses noise (leave-one-out: Ahmadian et al., "Back to
    basics", 2024, arXiv:2402.14740; without copies: Mao et al., 2019, arXiv:1807.02264).

    Args:
        advantage_TN: of `gae`, of all ranks' envs.
        copies: K; envs i K to i K + K - 1 are of one host. With 1 nothing is subtracted.
    """
    if copies == 1:
        return advantage_TN
    by_host = advantage_TN.reshape(len(advantage_TN), -1, copies)
    others = (by_host.sum(-1, keepdim=True) - by_host) / (copies - 1)
    return (by_host - others).reshape(advantage_TN.shape)


def advantages(
    reward_TN: Tensor,
    value_TN: Tensor,
    gamma: float,
    lam: float,
    decision_epochs: Sequence[int] = (),
    copies: int = 1,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of a round's D decisions, [D, N] each.

    Args:
        reward_TN: by epoch, of all ranks' envs.
        value_TN: V(s_t); read at the decisions.
        decision_epochs: ascending; empty = every epoch.
        copies: see `subtract_copies`.
    """
    if decision_epochs:
        reward_TN = rewards_of_decisions(reward_TN, decision_epochs, gamma)
        value_TN = torch.stack([value_TN[epoch] for epoch in decision_epochs])  # a list would be copied over
    advantage_DN, return_DN = gae(reward_TN, value_TN, gamma=gamma, lam=lam, epochs=decision_epochs or None)
    return subtract_copies(advantage_DN, copies), return_DN
