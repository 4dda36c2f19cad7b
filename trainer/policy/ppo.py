"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) of the recurrent actor-critic.

Complete sequences, minibatched over envs; each head of the factored action has its own ratio and clip.
Whether a step is taken (loss and gradient are finite) is decided on the device, and one transfer at the end
brings every statistic. With `target_kl` the host waits for one bit of each minibatch, between its forward and
its backward pass: what comes after the policy has moved too far is not computed at all. Where minibatches are
replayed as CUDA graphs (`minibatch_program`) that bit stays on the device, and the host looks once a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.device import exact_float32
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.compute.schedules import schedule_share
from esper_overwatch.trainer.config.policy_options import PPOConfig

from .actions import ActionSpace
from .coefficients import Coefficients, sharpness
from .early_stop import EarlyStop, MaskedStop
from .feature_statistics import feature_statistics
from .minibatch_program import MinibatchProgram
from .network import ActorCritic
from .plans import PlanSpace
from .rollout import Rollout
from .update_statistics import (
    EVERY_EPOCH,
    UpdateStatistics,
    rollout_statistics,
    stack_steps,
    summarise,
    to_host,
)

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
        - c_e mean_t sum_h m_h H_h / ln n_h,
    over the heads h that matter for the op of step t; n_h is the number of legal choices, m_h the head's
    multiple of the entropy coefficient.

    Args:
        batch: sequences [T, n].
        advantage: [T, n], normalised.
        target: [T, n], what the critic should predict, in normalised units.
        coefficients: with the floors that the actions were drawn under.
        share: of the minibatch that this batch is; the other ranks hold the rest.
    """
    initial = network.initial(batch.reset.shape[1])
    if isinstance(space, PlanSpace):
        rows = space.rows
        out = network(batch.observation, initial, batch.reset, batch.plan)
        now = space.evaluate(tuple(head[rows] for head in out.logits), batch.plan[rows], batch.free[rows])
        value, old_log_prob = out.value[rows], batch.log_prob[rows]
    else:
        out = network(batch.observation, initial, batch.reset)
        now = space.evaluate(out.logits, batch.actions, batch.legal, coefficients.floor_H)
        value, old_log_prob = out.value, batch.log_prob
    log_ratio = now.log_prob - old_log_prob
    ratio, clip = log_ratio.exp(), coefficients.clip
    advantages = advantage.unsqueeze(-1)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    pg_loss = -share * (surrogate * now.relevant).sum(-1).mean()
    v_loss = share * (value - target).square().mean() / 2

    max_entropy = now.max_entropy
    has_choice = max_entropy > 0
    normalised = (now.entropy / max_entropy.where(has_choice, 1.0)).where(has_choice, 0.0)
    entropy_bonus = share * (coefficients.head_entropy_H * normalised).sum(-1).mean()
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
        self.network = network
        self.space = space
        self._rows = space.rows if isinstance(space, PlanSpace) else EVERY_EPOCH
        self.cfg = cfg
        self.seed = seed
        self.updates = 0
        self._device = network.place.device
        self._coefficients: tuple[tuple[PPOConfig, int, torch.dtype], Coefficients] | None = None
        self._streak = torch.zeros((), dtype=torch.int64, device=self._device)
        compiler = compiler or Compiler("off", self._device)
        self._loss = compiler.wrap(
            "the PPO loss",
            ppo_loss,
            weights=lambda: list(network.parameters()),
            objective=lambda loss: loss.total,
            key=lambda *args: (args[3].shape, *args[5].constants, args[6]),
            loops=True,
        )
        self.optimizer = torch.optim.Adam(network.parameters(), lr=cfg.learning_rate, eps=1e-5, fused=True)
        self._program: MinibatchProgram | None = None
        self._describe, self._learn_inputs = self._describe_experience, network.learn_normalisers
        if graphs is not None and graphs.on and self.process_group.size == 1:
            self._program = MinibatchProgram(network, self.optimizer, self._whole_loss, graphs)
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
        begun = time.perf_counter()
        rate = scheduled_rate(self.cfg, self._rounds, self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.network.rescale_value(returns)
        target = self.network.value_norm(returns.unsqueeze(-1)).squeeze(-1)
        scale = advantage.std().clamp_min(self.cfg.advantage_std_floor) + 1e-8
        scaled = (advantage - advantage.mean()) / scale
        experience = rollout
        if isinstance(self.space, PlanSpace):
            rollout = rollout.epochs(self.space.horizon)
        if self.cfg.reevaluate:
            rollout = self._reevaluated(rollout)
        early_stop: EarlyStop | MaskedStop
        if self._program is None or self._only_observes:
            early_stop = EarlyStop(self._streak, self.cfg)
            steps, rest = self._take_steps(rollout, scaled, target, early_stop)
        else:
            early_stop = self._program.early_stop
            steps, rest = self._replay_steps(self._program, rollout, scaled, target)
        self._teach_critic(rest, rollout, target, early_stop)
        self._streak = early_stop.streak.clone()
        self.updates += 1
        overall = self._describe(experience, advantage, returns, self.cfg.gamma) | {"advantage_scale": scale}
        self._learn_inputs(rollout.observation)
        if self.cfg.sharpen_rounds:
            self.network.sharpness.fill_(sharpness(self.cfg, self.updates))
        overall["stopped"] = torch.full_like(early_stop.longest, 0) + early_stop.stopped
        step, numbers = to_host(steps, overall | {"nonfinite_in_a_row": early_stop.longest})
        if (streak := int(numbers.pop("nonfinite_in_a_row"))) >= MAX_NONFINITE_STEPS:
            raise PolicyDiverged(
                f"PPO update {self.updates}: loss or gradient not finite in {streak} steps in a row, weights "
                "kept from the last finite step; lower ppo.learning_rate or resume from an earlier checkpoint"
            )
        stopped = bool(numbers.pop("stopped"))
        if (ran := step.pop("ran", None)) is not None:
            kept = max(1, int(ran.sum()))  # those after a stop were computed and not applied
            step = {name: rows[:kept] for name, rows in step.items()}
        used = msgspec.structs.replace(self.cfg, learning_rate=rate)
        return summarise(
            step,
            numbers,
            used,
            self.updates - 1,
            early_stop=stopped,
            critic_minibatches=len(rest),
            seconds=time.perf_counter() - begun,
        )

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

    def _take_steps(
        self, rollout: Rollout, advantage: Tensor, target: Tensor, early_stop: EarlyStop
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Statistics [M, ...] of the steps up to a stop, and minibatches that then teach the critic."""
        passes = 1 if self._only_observes else self.cfg.epochs
        minibatches = self._minibatches(target.shape[1], passes)
        steps = []
        for minibatch in minibatches:
            loss = self._loss_of(minibatch, rollout, advantage, target)
            steps.append(self._step(loss, early_stop))
            if len(steps) in range(self.cfg.minibatches, passes * self.cfg.minibatches, self.cfg.minibatches):
                early_stop.check_pass()
            if early_stop.stopped:
                break
        rest = list(minibatches) if early_stop.stopped and self.cfg.kl_stops == "policy" else []
        return stack_steps(steps), rest

    def _replay_steps(
        self, program: MinibatchProgram, rollout: Rollout, advantage: Tensor, target: Tensor
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """`_take_steps` replayed: the host waits once a pass, and steps issued after a stop are not
        applied."""
        cfg, stop = self.cfg, program.early_stop
        stop.begin(self._streak)
        rate = torch.full((), self.optimizer.param_groups[0]["lr"], device=self._device)
        minibatches = list(self._minibatches(target.shape[1], cfg.epochs))
        rows = []
        for done, envs in enumerate(minibatches, 1):
            rows.append(program.step(rollout, advantage, target, self.coefficients, cfg, rate, envs))
            if cfg.target_kl > 0 and done % cfg.minibatches == 0 and done < len(minibatches):
                if cfg.kl_per == "pass":
                    stop.end_pass(cfg.target_kl)
                if bool(stop.stopped):
                    break
        steps = program.unpack(rows)
        if cfg.target_kl > 0 and cfg.kl_stops == "policy" and bool(stop.stopped):
            return steps, minibatches[int(steps["ran"].sum()) :]
        return steps, []

    @property
    def coefficients(self) -> Coefficients:
        """Coefficients of the next update, and of the decisions that it will learn from."""
        weight = self.network.place
        chosen = (self.cfg, self.updates, weight.dtype)
        if self._coefficients is None or self._coefficients[0] != chosen:
            self._coefficients = (chosen, Coefficients.of(*chosen, weight.device))
        return self._coefficients[1]

    @property
    def _only_observes(self) -> bool:
        """True if the next update learns the statistics of its inputs and returns, and no weight."""
        return self.updates < self.cfg.observe_rounds

    def _minibatches(self, n: int, passes: int = 1) -> Iterator[Tensor]:
        """The passes' minibatches in turn: random partitions of the n envs, another one each pass."""
        updates = torch.full((), self.updates, dtype=torch.int64, device=self._device)
        keys = rng.key(self.seed, rng.Purpose.MINIBATCH, updates, torch.arange(passes, device=self._device))
        for order in rng.permutation(keys, n):
            yield from order.tensor_split(self.cfg.minibatches)

    def _loss_of(self, minibatch: Tensor, rollout: Rollout, advantage: Tensor, target: Tensor) -> Loss:
        """This rank's share of the loss of a minibatch of envs."""
        envs = self._share(minibatch)
        share = len(envs) / len(minibatch)
        batch = rollout.envs(envs)
        return self._loss(
            self.network, self.space, batch, advantage[:, envs], target[:, envs], self.coefficients, share
        )

    def _whole_loss(
        self, batch: Rollout, advantage: Tensor, target: Tensor, coefficients: Coefficients
    ) -> Loss:
        """Loss of a minibatch that no other rank computes a part of."""
        return self._loss(self.network, self.space, batch, advantage, target, coefficients, 1.0)

    def _share(self, minibatch: Tensor) -> Tensor:
        """The envs of a minibatch that this rank computes."""
        return minibatch.tensor_split(self.process_group.size)[self.process_group.rank]

    @torch.no_grad()
    def _reevaluated(self, rollout: Rollout) -> Rollout:
        """The rollout with log-probabilities from batches of the shapes that the passes over it have.

        Deciding runs other shapes, so its sums are rounded in another order; where products are rounded to
        TF32 as well, such a difference can grow a thousandfold.
        """
        log_prob = rollout.log_prob.clone()
        for minibatch in self._minibatches(rollout.log_prob.shape[1]):
            for envs in minibatch.tensor_split(self.process_group.size):
                batch = rollout.envs(envs)
                out = self.network(batch.observation, self.network.initial(len(envs)), batch.reset)
                now = self.space.evaluate(out.logits, batch.actions, batch.legal, self.coefficients.floor_H)
                log_prob[:, envs] = now.log_prob.to(log_prob.dtype)
        return replace(rollout, log_prob=log_prob)

    def _step(self, loss: Loss, early_stop: EarlyStop) -> dict[str, Tensor]:
        """Take one Adam step if `early_stop` allows it; returns statistics by name, the same on all ranks."""
        whole = self._all_reduce(loss)
        if self._only_observes or early_stop.stops_at(whole.approx_kl, whole.total.isfinite()):
            nothing = whole.total.new_full((), torch.nan)
            return whole.statistics() | {
                "grad_norm": nothing,
                "head_grad_norm": nothing.expand(len(HEAD_NAMES)),
                "critic_grad_norm": nothing,
                "applied": torch.zeros_like(whole.total, dtype=torch.bool),
                "finite": whole.total.isfinite(),
            }
        self._backward_and_all_reduce(loss)
        heads = torch.stack([_grad_norm(self.network.heads[name]) for name in HEAD_NAMES])
        critic = _grad_norm(self.network.critic)
        total = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.cfg.max_grad_norm)
        applied = early_stop.allows_step(whole.total.isfinite() & total.isfinite())
        # A fused step leaves weights, moments and counters alone where found_inf is 1 (as GradScaler has it).
        self.optimizer.found_inf = (~applied).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        return whole.statistics() | {
            "grad_norm": total,
            "head_grad_norm": heads,
            "critic_grad_norm": critic,
            "applied": applied,
            "finite": applied,
        }

    def _teach_critic(
        self,
        minibatches: Sequence[Tensor],
        rollout: Rollout,
        target: Tensor,
        early_stop: EarlyStop | MaskedStop,
    ) -> None:
        """Let the critic's output layer alone learn; the policy stays what it is, bit for bit."""
        if not minibatches:
            return
        network, critic = self.network, self.network.critic
        with torch.no_grad():
            hidden = network(rollout.observation, network.initial(target.shape[1]), rollout.reset).h
        for minibatch in minibatches:
            envs = self._share(minibatch)
            error = critic(hidden[:, envs]).squeeze(-1) - target[:, envs]
            share = len(envs) / len(minibatch)
            self.optimizer.zero_grad(set_to_none=True)
            (self.coefficients.value * share * error.square().mean() / 2).backward()
            self.process_group.all_reduce_([p.grad for p in critic.parameters() if p.grad is not None])
            norm = torch.nn.utils.clip_grad_norm_(critic.parameters(), self.cfg.max_grad_norm)
            applied = early_stop.allows_step(norm.isfinite())
            self.optimizer.found_inf = (~applied).float()  # type: ignore[attr-defined]
            self.optimizer.step()

    def _all_reduce(self, loss: Loss) -> Loss:
        """The statistics of the minibatch, from those of all ranks' shares; without a gradient."""
        whole = loss._replace(total=loss.total.detach().clone())
        self.process_group.all_reduce_(whole[:-2])
        extremes = torch.stack([whole.ratio_min, -whole.ratio_max]).unsqueeze(0)
        low, high = self.process_group.all_gather(extremes, dim=0).amin(0)
        return whole._replace(ratio_min=low, ratio_max=-high)

    def _backward_and_all_reduce(self, loss: Loss) -> None:
        """Run backward; add up the gradients of all ranks to those of the minibatch."""
        self.optimizer.zero_grad(set_to_none=False)
        loss.total.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        self.process_group.all_reduce_(gradients)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, beside the network."""
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates, "streak": self._streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self._streak = state["streak"].to(self._device)


def _grad_norm(layer: nn.Module) -> Tensor:
    """L2 norm of a layer's gradient."""
    gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def scheduled_rate(cfg: PPOConfig, rounds: int, updates: int) -> float:
    """The learning rate of the next update.

    Over the first `cfg.warmup_rounds` it grows linearly to `cfg.learning_rate`, then it follows
    `cfg.schedule` to 0 after the last round, see `schedule_share`.

    Args:
        rounds: of PPO; read by schedules that decay only.
        updates: finished before.
    """
    share = schedule_share(cfg.schedule, warmup=cfg.warmup_rounds, total=rounds, done=updates)
    return cfg.learning_rate * share
