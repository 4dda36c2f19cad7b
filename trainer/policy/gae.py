"""Generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438), and a baseline by task."""

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


def subtract_task_baseline(advantage_TN: Tensor, task_N: Tensor) -> Tensor:
    """Advantages [T, N], each less the mean of the other envs that learn the same task, at the same step.

    The task that an env has drawn decides most of its return, and no action changes it; the critic, who sees
    what the policy sees, learns it only as the episode goes on. Such a baseline depends on the environment's
    own randomness and on no action, so that it leaves the policy's gradient unbiased and takes noise from it
    (Mao et al., "Variance reduction for reinforcement learning in input-driven environments", 2019,
    arXiv:1807.02264). The policy does not see the task: only learning uses it.

    Args:
        advantage_TN: of `gae`.
        task_N: int64 [N], a number for each env's task; an env that is alone with its task keeps its
            advantages.
    """
    same_NN = (task_N.unsqueeze(0) == task_N.unsqueeze(1)).double()
    exact_TN, others_N = advantage_TN.double(), same_NN.sum(0) - 1.0
    mean_TN = (exact_TN @ same_NN - exact_TN) / others_N.clamp_min(1.0)
    return advantage_TN - mean_TN.where(others_N > 0, 0.0).to(advantage_TN.dtype)
