"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) of the recurrent actor-critic.

Complete sequences, minibatched over envs; each head of the factored action has its own ratio and clip. A step
(`minibatch`) decides on the device whether it is taken, and one transfer at the end brings every statistic.
With `target_kl` the host waits for one bit of each minibatch, between its forward and its backward pass: what
comes after the policy has moved too far is not computed at all. Where steps are replayed as CUDA graphs that
bit stays on the device, and the host looks once a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.device import exact_float32
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.compute.schedules import schedule_share
from esper_overwatch.trainer.config.policy_options import PPOConfig

from .actions import ActionSpace, Evaluation
from .coefficients import Coefficients
from .feature_statistics import feature_statistics
from .minibatch import Minibatch
from .network import ActorCritic, Output
from .plans import PlanSpace
from .rollout import Rollout
from .update_statistics import EVERY_EPOCH, UpdateStatistics, rollout_statistics, summarise, to_host

MAX_NONFINITE_STEPS = 3
"""Steps in a row with a non-finite loss or gradient after which training ends."""


class PolicyDiverged(EsperError):
    """The policy's loss stayed non-finite; its weights are those of the last finite step."""

    exit_code = 11


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

    def all_reduce(self, group: ProcessGroup) -> Loss:
        """The loss of the minibatch, from those of all ranks' shares; without a gradient."""
        whole = self._replace(total=self.total.detach().clone())
        if group.size == 1:
            return whole
        group.all_reduce_(whole[:-2])
        extremes = torch.stack([whole.ratio_min, -whole.ratio_max]).unsqueeze(0)
        low, high = group.all_gather(extremes, dim=0).amin(0)
        return whole._replace(ratio_min=low, ratio_max=-high)

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


class PPO:
    """Improves an actor-critic on rollouts.

    Args:
        network: policy and value function.
        space: its action heads.
        cfg: coefficients.
        seed: of the minibatches' order.
        process_group: the ranks that compute a minibatch together.
        compiler: of the loss; None = uncompiled.
        rounds: over which the learning rate is scheduled; 0 where it is constant.
        graphs: of minibatches and statistics, where no other rank computes a part of them; None = without.
    """

    def __init__(
        self,
        network: ActorCritic,
        space: ActionSpace | PlanSpace,
        cfg: PPOConfig,
        seed: int,
        process_group: ProcessGroup | None = None,
        compiler: Compiler | None = None,
        rounds: int = 0,
        graphs: CudaGraphs | None = None,
    ) -> None:
        self._rounds = rounds
        self.process_group = process_group or ProcessGroup()
        self.network, self.space, self.cfg, self.seed = network, space, cfg, seed
        self._rows = space.rows if isinstance(space, PlanSpace) else EVERY_EPOCH
        self.updates = 0
        self._device = network.place.device
        compiler = compiler or Compiler("off", self._device)
        loss = compiler.wrap(
            "the PPO loss",
            ppo_loss,
            weights=lambda: list(network.parameters()),
            objective=lambda loss: loss.total,
            key=lambda *args: (args[3].shape, args[5].clip, args[6]),
            loops=True,
        )
        self._minibatch = Minibatch(
            network, lambda *args: loss(network, space, *args), self.process_group, graphs
        )
        self._describe, self._learn_inputs = self._describe_experience, network.learn_normalisers
        if graphs is not None and self._minibatch.is_replayed:
            norms = network.base_norm, network.epoch_norm, network.slot_norm
            self._describe = graphs.wrap("the statistics of an update", self._describe, in_place=(0,))
            self._learn_inputs = graphs.wrap(
                "the normalisers of the policy",
                self._learn_inputs,
                changes=lambda: [buffer for norm in norms for buffer in norm.buffers()],
                in_place=(0,),
            )

    def configure(self, **changes: float) -> None:
        """Change coefficients, for the updates to come.

        Args:
            changes: fields of `PPOConfig` by name.
        """
        self.cfg = msgspec.structs.replace(self.cfg, **changes)

    def update(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> UpdateStatistics:
        """Several passes over a round's experience, then the normalisers learn from it.

        Args:
            rollout: sequences [T, N] of all ranks.
            advantage: [T, N], see `gae`.
            returns: [T, N], what the critic should have predicted, in units of the reward.

        Raises:
            PolicyDiverged: loss or gradient was non-finite `MAX_NONFINITE_STEPS` steps in a row.
        """
        with exact_float32(self._device):
            return self._update(rollout, advantage, returns)

    def _update(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> UpdateStatistics:
        begun, cfg = time.perf_counter(), self.cfg
        rate = scheduled_rate(cfg, self._rounds, self.updates)
        self.network.rescale_value(returns)
        target = self.network.value_norm(returns.unsqueeze(-1)).squeeze(-1)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        looked_at = rollout.epochs(self.space.horizon) if isinstance(self.space, PlanSpace) else rollout
        stop = self._minibatch.early_stop
        stop.begin()
        steps = self._take_steps(looked_at, scaled, target, rate)
        self.updates += 1
        overall = self._describe(rollout, advantage, returns, cfg.gamma)
        self._learn_inputs(looked_at.observation)
        overall |= {"stopped": stop.stopped, "nonfinite_in_a_row": stop.longest}
        step, numbers = to_host(steps, overall)
        if (streak := int(numbers.pop("nonfinite_in_a_row"))) >= MAX_NONFINITE_STEPS:
            raise PolicyDiverged(
                f"PPO update {self.updates}: loss or gradient not finite in {streak} steps in a row, weights "
                "kept from the last finite step; lower ppo.learning_rate or resume from an earlier checkpoint"
            )
        stopped = bool(numbers.pop("stopped"))
        kept = max(1, int(step.pop("ran").sum()))  # those after a stop were computed and not applied
        return summarise(
            {name: rows[:kept] for name, rows in step.items()},
            numbers,
            msgspec.structs.replace(cfg, learning_rate=rate),
            self.updates - 1,
            early_stop=stopped,
            seconds=time.perf_counter() - begun,
        )

    def _take_steps(
        self, rollout: Rollout, advantage: Tensor, target: Tensor, learning_rate: float
    ) -> dict[str, Tensor]:
        """Statistics [M, ...] of the steps, up to a stop."""
        cfg, take = self.cfg, self._minibatch
        coefficients = Coefficients.of(cfg, self.updates, self.network.place.dtype, self._device)
        rate = torch.full((), learning_rate, device=self._device)
        every, last = cfg.minibatches if take.is_replayed else 1, cfg.epochs * cfg.minibatches
        rows = []
        for done, envs in enumerate(self._minibatches(target.shape[1]), 1):
            rows.append(take.step(rollout, advantage, target, coefficients, cfg, rate, envs))
            if cfg.target_kl > 0 and done % every == 0 and done < last and take.has_stopped():
                break
        return take.unpack(rows)

    def _minibatches(self, n: int) -> Iterator[Tensor]:
        """The passes' minibatches in turn: random partitions of the n envs, another one each pass."""
        updates = torch.full((), self.updates, dtype=torch.int64, device=self._device)
        passes = torch.arange(self.cfg.epochs, device=self._device)
        keys = rng.key(self.seed, rng.Purpose.MINIBATCH, updates, passes)
        for order in rng.permutation(keys, n):
            yield from order.tensor_split(self.cfg.minibatches)

    @torch.no_grad()
    def _describe_experience(
        self, rollout: Rollout, advantage: Tensor, returns: Tensor, gamma: float
    ) -> dict[str, Tensor]:
        """Describe the update's experience and inputs, before the normalisers learn from them."""
        statistics = rollout_statistics(rollout, advantage, returns, gamma, self._rows)
        network, seen = self.network, rollout.observation
        if isinstance(self.space, PlanSpace):
            seen = rollout.epochs(self.space.horizon).observation
        features = feature_statistics(seen, network.base_norm, network.slot_norm)
        return statistics | network.observed(seen) | {"features": features}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, beside the network."""
        streak = self._minibatch.early_stop.streak.clone()
        moments = [[tensor.clone() for tensor in part] for part in self._minibatch.moments]
        return {"moments": moments, "updates": self.updates, "streak": streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self._minibatch.moments, state["moments"], strict=True):
            for tensor, value in zip(part, saved, strict=True):
                tensor.copy_(value)
        self.updates = state["updates"]
        self._minibatch.early_stop.streak.copy_(state["streak"])


def scheduled_rate(cfg: PPOConfig, rounds: int, updates: int) -> float:
    """The learning rate of the next update: it follows `cfg.schedule` to 0 after the last round.

    Args:
        cfg: with the rate of the first update.
        rounds: of PPO; read by schedules that decay only.
        updates: finished before.
    """
    return cfg.learning_rate * schedule_share(cfg.schedule, warmup=0, total=rounds, done=updates)
