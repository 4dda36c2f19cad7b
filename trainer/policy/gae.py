"""Generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(reward_TN: Tensor, value_TN: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and the returns that the critic should predict, both [T, N], of episodes of T steps.

    A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V(s_{t+1}) - V(s_t); after the last step the
    episode is over, so that both are 0 there: the observation has the time.

    Args:
        reward_TN: reward of the action taken at step t.
        value_TN: V(s_t), in units of the reward.
        gamma: discount.
        lam: 0 = one-step differences, 1 = complete returns.
    """
    last = torch.zeros_like(value_TN[0])
    delta_TN = reward_TN + gamma * torch.cat([value_TN[1:], last[None]]) - value_TN
    advantage_TN = torch.empty_like(delta_TN)
    for t in range(len(delta_TN) - 1, -1, -1):
        last = delta_TN[t] + gamma * lam * last
        advantage_TN[t] = last
    return advantage_TN, advantage_TN + value_TN
