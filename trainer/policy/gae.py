"""Generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    *,
    gamma: float,
    lam: float,
    ends_TN: Tensor | None = None,
    final_value_TN: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and the returns that the critic should predict, both [T, N].

    A_t = delta_t + gamma lam A_{t+1} within an episode, delta_t = r_t + gamma V(s_{t+1}) - V(s_t).

    Args:
        reward_TN: reward of the action taken at step t.
        value_TN: V(s_t), in units of the reward.
        gamma: discount.
        lam: 0 = one-step differences, 1 = complete returns.
        ends_TN: bool, an episode ended with this step; by default only with the last one.
        final_value_TN: value of the state that an ended episode was left in: 0 (the default) where it was
            over, V(s) where it was cut off. Read only where `ends_TN` is true.
    """
    last = torch.zeros_like(value_TN[0])
    if ends_TN is None:
        ends_TN = torch.zeros_like(reward_TN, dtype=torch.bool)
        ends_TN[-1] = True
    if final_value_TN is None:
        final_value_TN = torch.zeros_like(value_TN)
    following_TN = final_value_TN.where(ends_TN, torch.cat([value_TN[1:], last[None]]))
    delta_TN = reward_TN + gamma * following_TN - value_TN
    decay_TN = gamma * lam * (~ends_TN).to(delta_TN.dtype)
    advantage_TN = torch.empty_like(delta_TN)
    for t in range(len(delta_TN) - 1, -1, -1):
        last = delta_TN[t] + decay_TN[t] * last
        advantage_TN[t] = last
    return advantage_TN, advantage_TN + value_TN
