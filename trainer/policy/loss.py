"""The loss of PPO (Schulman et al., 2017, arXiv:1707.06347), of factored actions and complete sequences.

Each head of the action has its own ratio and clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .actions import ActionSpace, Evaluation
from .coefficients import Coefficients
from .network import ActorCritic, Output
from .plans import PlanSpace
from .rollout import Rollout


class Loss(NamedTuple):
    """The objective of one minibatch and its statistics, all detached but `total`.

    The shares of several ranks add up, but for `ratio_min` and `ratio_max`.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    approx_kl: Tensor
    """KL(old || new) by the estimator r - 1 - ln r (Schulman, "Approximating KL divergence", 2020)."""
    num_clipped_ratios: Tensor
    """[heads] how many ratios left 1 +- clip."""
    num_ratios: Tensor
    """[heads] how many ratios mattered."""
    entropy_ratio: Tensor
    """[heads] entropy over that of a uniform choice among what was legal, summed over the steps."""
    choice_steps: Tensor
    """[heads] steps with a choice."""
    entropy_sum: Tensor
    """Entropy, summed over heads and steps."""
    max_entropy_sum: Tensor
    """Entropy of uniform choices among what was legal, summed likewise."""
    hidden_mean_square: Tensor
    cell_mean_square: Tensor
    ratio_min: Tensor
    """[heads]"""
    ratio_max: Tensor
    """[heads]"""

    def pack(self, rank: int, ranks: int) -> list[Tensor]:
        """Tensors whose sums over the ranks `unpack` reads; without a gradient."""
        extremes = self.ratio_min.new_zeros((ranks, 2, len(self.ratio_min)))
        extremes[rank] = torch.stack([self.ratio_min, self.ratio_max])
        return [self.total.detach(), *self[1:-2], extremes]

    @classmethod
    def unpack(cls, sums: Sequence[Tensor]) -> Loss:
        """The loss of the minibatch."""
        *parts, extremes = sums
        return cls._make([*parts, extremes[:, 0].amin(0), extremes[:, 1].amax(0)])

    @property
    def clip_fraction(self) -> Tensor:
        """Share of the ratios that left 1 +- clip."""
        return self.num_clipped_ratios.sum() / self.num_ratios.sum()

    def statistics(self) -> dict[str, Tensor]:
        """Statistics of a step by name; entropies are 0..1, NaN where there was never a choice."""
        return {
            "policy_loss": self.policy,
            "value_loss": self.value,
            "approx_kl": self.approx_kl,
            "clip_fraction": self.clip_fraction,
            "head_clip_fraction": self.num_clipped_ratios / self.num_ratios,
            "ratio_min": self.ratio_min,
            "ratio_max": self.ratio_max,
            "entropy": self.entropy_sum / self.max_entropy_sum,
            "head_entropy": self.entropy_ratio / self.choice_steps,
            "hidden_rms": self.hidden_mean_square.sqrt(),
            "cell_rms": self.cell_mean_square.sqrt(),
        }


def ppo_loss(
    network: ActorCritic,
    space: ActionSpace | PlanSpace,
    batch: Rollout,
    advantage: Tensor,
    target: Tensor,
    coefficients: Coefficients,
    share: float = 1.0,
) -> Loss:
    """Clipped surrogate, squared value error and entropy bonus.

    L = -mean_t sum_h min(r_h A, clip(r_h) A) + c_v mean (V - target)^2 / 2
        - c_e mean_t sum_h H_h / ln n_h,
    over the heads h that matter for the decision of step t; n_h is the number of legal choices.

    Args:
        batch: sequences [T, n].
        advantage: [D, n] of the decisions, normalised; every step is one unless `space` is of plans.
        target: [D, n], what the critic should predict, in normalised units.
        share: of the minibatch that this batch is; the other ranks hold the rest.
    """
    out, value, now, old_log_prob = evaluate(network, space, batch)
    log_ratio = now.log_prob - old_log_prob
    ratio, clip = log_ratio.exp(), coefficients.clip
    advantages = advantage.unsqueeze(-1)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    pg_loss = -share * (surrogate * now.relevant).sum(-1).mean()
    v_loss = share * (value - target).square().mean() / 2

    max_entropy = now.max_entropy
    has_choice = max_entropy > 0
    normalised = (now.entropy / max_entropy.where(has_choice, 1.0)).where(has_choice, 0.0)
    entropy_bonus = share * normalised.sum(-1).mean()
    total = pg_loss + coefficients.value * v_loss - coefficients.entropy * entropy_bonus

    steps = (0, 1)
    with torch.no_grad():
        joint = log_ratio.sum(-1)
        clipped = ((ratio - 1).abs() > clip) & now.relevant
        return Loss(
            total=total,
            policy=pg_loss.detach(),
            value=v_loss.detach(),
            approx_kl=share * (joint.exp() - 1 - joint).mean(),
            num_clipped_ratios=clipped.sum(steps).to(ratio.dtype),
            num_ratios=now.relevant.sum(steps).to(ratio.dtype),
            entropy_ratio=normalised.sum(steps),
            choice_steps=has_choice.sum(steps).to(ratio.dtype),
            entropy_sum=(now.entropy * has_choice).sum(),
            max_entropy_sum=(max_entropy * has_choice).sum(),
            hidden_mean_square=share * out.h.square().mean(),
            cell_mean_square=share * out.c.square().mean(),
            ratio_min=ratio.amin(steps),
            ratio_max=ratio.amax(steps),
        )


def evaluate(
    network: ActorCritic, space: ActionSpace | PlanSpace, batch: Rollout
) -> tuple[Output, Tensor, Evaluation, Tensor]:
    """The network's view of a batch [T, n]: its outputs at every step; then of the decisions V(s) [D, n] in
    normalised units, what it thinks of those taken, and their log-probabilities [D, n, heads] by the policy
    that acted.
    """
    initial = network.initial(batch.reset.shape[1])
    if isinstance(space, PlanSpace):
        rows = space.rows
        out = network(batch.observation, initial, batch.reset, batch.plan)
        logits = tuple(head[rows] for head in out.logits)
        now = space.evaluate(logits, batch.plan[rows], batch.free[rows])
        return out, out.value[rows], now, batch.log_prob[rows]
    out = network(batch.observation, initial, batch.reset)
    return out, out.value, space.evaluate(out.logits, batch.actions, batch.legal), batch.log_prob
