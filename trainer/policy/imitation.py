"""Behaviour cloning: a policy learns to act as a demonstration did, and its critic what that earned."""

from __future__ import annotations

import torch

from trainer.compute import rng
from trainer.compute.device import exact_float32

from .ppo import PPO
from .rollout import Rollout


def imitate(learner: PPO, rollout: Rollout, round: int, passes: int, learning_rate: float) -> float:
    """Several passes over a round of demonstrations, in the minibatches of PPO.

    L = -mean_t sum_h ln p_h(a_h) + c_v mean (V - R)^2 / 2, over the heads h that matter for the op of step t;
    R is the sum of the rewards from t on, in normalised units.

    Args:
        learner: its network is changed. Its optimiser is not: the moments of these gradients, which end up
            small, would make the first steps of PPO huge.
        rollout: sequences [T, N] of all ranks, whose actions are the demonstration; every rank computes the
            same.
        round: keys the order of the minibatches.
        learning_rate: of Adam, which begins anew.

    Returns:
        Mean of -ln p(a) over the last pass, nats per step.
    """
    network, cfg, n = learner.network, learner.cfg, rollout.reward.shape[1]
    device = rollout.reward.device
    returns = rollout.reward.flip(0).cumsum(0).flip(0)
    network.rescale_value(returns)
    network.learn_normalisers(rollout.observation)
    target = network.value_norm(returns.unsqueeze(-1)).squeeze(-1)
    keys = rng.key(learner.seed, rng.Purpose.IMITATION, round, torch.arange(passes, device=device))
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, eps=1e-5, fused=True)
    missed = torch.zeros((), device=device)
    with exact_float32(device):
        for order in rng.permutation(keys, n):
            missed = torch.zeros((), device=device)
            for envs in order.tensor_split(cfg.minibatches):
                batch = rollout.envs(envs)
                out = network(batch.observation, network.initial(len(envs)), batch.reset)
                log_prob = learner.space.evaluate(out.logits, batch.actions, batch.legal).log_prob
                cross_entropy = -log_prob.sum(-1).mean()
                v_loss = (out.value - target[:, envs]).square().mean() / 2
                optimizer.zero_grad()
                (cross_entropy + cfg.value_coefficient * v_loss).backward()
                norm = torch.nn.utils.clip_grad_norm_(network.parameters(), cfg.max_grad_norm)
                optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
                optimizer.step()
                missed += cross_entropy.detach() * len(envs) / n
    return float(missed)
