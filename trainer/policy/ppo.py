"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) of the recurrent actor-critic.

Whole sequences, minibatched over envs; each head of the factored action has its own ratio and clip.
The update never waits for the device: whether a step is taken (the loss is finite, the policy has not moved
too far) is decided there, and one transfer at the end brings every statistic.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from protocol.errors import EsperError
from protocol.events import PPOUpdate

from .. import rng
from ..compiled import Compiler
from ..config import PPOConfig
from ..ranks import World
from ..seeds.stages import HEAD_NAMES
from .actions import ActionSpace
from .figures import Figures
from .network import ActorCritic
from .rollout import Rollout

NONFINITE_LIMIT = 3
"""Steps in a row with a non-finite loss or gradient after which training ends."""


class PolicyDiverged(EsperError):
    """The policy's loss stayed non-finite; its weights are those of the last finite step."""

    exit_code = 11


class Loss(NamedTuple):
    """The objective of one minibatch and what it tells, all detached but `total`.

    The shares of several ranks add up, but for `ratio_min` and `ratio_max`.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    kl: Tensor
    """KL(old || new) by the estimator r - 1 - ln r (Schulman, "Approximating KL divergence", 2020)."""
    clipped_factors: Tensor
    """How many ratios left 1 +- clip."""
    factors: Tensor
    """How many ratios mattered."""
    nats: Tensor
    """[heads] entropy over that of a uniform choice among what was legal, summed over the steps."""
    choices: Tensor
    """[heads] steps with a choice."""
    nats_all: Tensor
    """Entropy, summed over heads and steps."""
    nats_most: Tensor
    """That of uniform choices among what was legal."""
    h_square: Tensor
    c_square: Tensor
    ratio_min: Tensor
    """[heads]"""
    ratio_max: Tensor
    """[heads]"""

    @property
    def clipped(self) -> Tensor:
        """Share of factors whose ratio left 1 +- clip."""
        return self.clipped_factors / self.factors

    def figures(self) -> dict[str, Tensor]:
        """What is told of a step, by name; entropies are 0..1, NaN where there was never a choice."""
        return {
            "policy": self.policy, "value": self.value, "kl": self.kl, "clipped": self.clipped,
            "ratio_min": self.ratio_min, "ratio_max": self.ratio_max,
            "entropy": self.nats_all / self.nats_most, "head_entropy": self.nats / self.choices,
            "h_rms": self.h_square.sqrt(), "c_rms": self.c_square.sqrt(),
        }  # fmt: skip


def ppo_loss(
    network: ActorCritic,
    space: ActionSpace,
    batch: Rollout,
    advantage: Tensor,
    target: Tensor,
    cfg: PPOConfig,
    share: float = 1.0,
) -> Loss:
    """Clipped surrogate, squared value error and entropy bonus.

    L = -mean_t sum_h min(r_h A, clip(r_h) A) + c_v mean (V - target)^2 / 2 - c_e mean_t sum_h H_h / ln n_h,
    over the heads h that matter for the op of step t; n_h is the number of legal choices.

    Args:
        batch: sequences [T, n].
        advantage: [T, n], normalised.
        target: [T, n], what the critic should say, in normalised units.
        share: of the minibatch that this batch is; the other ranks hold the rest.
    """
    out = network(batch.observation, network.initial(batch.reset.shape[1]), batch.reset)
    now = space.evaluate(out.logits, batch.actions, batch.legal)
    log_ratio = now.log_prob - batch.log_prob
    ratio = log_ratio.exp()
    gain = advantage.unsqueeze(-1)
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * gain)
    policy = -share * (surrogate * now.relevant).sum(-1).mean()
    value = share * (out.value - target).square().mean() / 2

    free = now.choices > 1
    most = now.choices.to(ratio.dtype).log()
    normalised = (now.entropy / most.where(free, 1.0)).where(free, 0.0)
    bonus = share * normalised.sum(-1).mean()
    total = policy + cfg.value_coefficient * value - cfg.entropy_coefficient * bonus

    steps = (0, 1)
    with torch.no_grad():
        joint = log_ratio.sum(-1)
        clipped = ((ratio - 1).abs() > cfg.clip) & now.relevant
        return Loss(
            total=total,
            policy=policy.detach(),
            value=value.detach(),
            kl=share * (joint.exp() - 1 - joint).mean(),
            clipped_factors=clipped.sum().to(ratio.dtype),
            factors=now.relevant.sum().to(ratio.dtype),
            nats=normalised.sum(steps),
            choices=free.sum(steps).to(ratio.dtype),
            nats_all=(now.entropy * free).sum(),
            nats_most=(most * free).sum(),
            h_square=share * out.h.square().mean(),
            c_square=share * out.c.square().mean(),
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
        world: the ranks that compute a minibatch together.
        compiler: of the loss; None = uncompiled.
    """

    def __init__(
        self, network: ActorCritic, space: ActionSpace, cfg: PPOConfig, seed: int,
        world: World | None = None, compiler: Compiler | None = None,
    ) -> None:  # fmt: skip
        self.world = world or World()
        self.network = network
        self.space = space
        self.cfg = cfg
        self.seed = seed
        self.updates = 0
        self._device = network.place.device
        self._streak = torch.zeros((), dtype=torch.int64, device=self._device)
        compiler = compiler or Compiler("off", self._device)
        self._loss = compiler.wrap(
            "the PPO loss", ppo_loss, weights=lambda: list(network.parameters()),
            objective=lambda loss: loss.total,
            key=lambda *args: (args[3].shape, *args[5:]), loops=True,
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(network.parameters(), lr=cfg.learning_rate, eps=1e-5, fused=True)

    def configure(self, **changes: float) -> None:
        """Change coefficients, for the updates to come.

        Args:
            changes: fields of `PPOConfig` by name.
        """
        self.cfg = msgspec.structs.replace(self.cfg, **changes)
        for group in self.optimizer.param_groups:
            group["lr"] = self.cfg.learning_rate

    def update(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> PPOUpdate:
        """Several passes over a round's experience, then the normalisers learn from it.

        Args:
            rollout: sequences [T, N] of all ranks.
            advantage: [T, N], see `gae`.
            returns: [T, N], what the critic should have predicted, in units of the reward.

        Raises:
            PolicyDiverged: loss or gradient was non-finite `NONFINITE_LIMIT` steps in a row.
        """
        begun = time.perf_counter()
        self.network.rescale_value(returns)
        target = self.network.value_norm(returns.unsqueeze(-1)).squeeze(-1)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gate = _Gate(self._streak)
        steps = []
        for epoch in range(self.cfg.epochs):
            for minibatch in self._minibatches(returns.shape[1], epoch):
                envs = minibatch.tensor_split(self.world.size)[self.world.rank]
                loss = self._loss(
                    self.network, self.space, rollout.envs(envs), scaled[:, envs], target[:, envs],
                    self.cfg, len(envs) / len(minibatch),
                )  # fmt: skip
                steps.append(self._step(self._of_all_ranks(loss), gate))
        self._streak = gate.streak
        self.updates += 1
        observed = self.network.observed(rollout.observation)
        self.network.learn_normalisers(rollout.observation)
        figures = Figures.of(steps, rollout, advantage, returns, gate.longest, observed)
        if (streak := int(figures.whole["nonfinite_in_a_row"])) >= NONFINITE_LIMIT:
            raise PolicyDiverged(
                f"PPO update {self.updates}: loss or gradient not finite in {streak} steps in a row, weights "
                "kept from the last finite step; lower ppo.learning_rate or resume from an earlier checkpoint"
            )
        return figures.event(self.cfg, seconds=time.perf_counter() - begun)

    def _minibatches(self, n: int, epoch: int) -> tuple[Tensor, ...]:
        """A random partition of the envs, another one each pass."""
        key = rng.key(self.seed, rng.Purpose.MINIBATCH, self.updates, epoch)
        return rng.permutation(key, n).to(self._device).tensor_split(self.cfg.minibatches)

    def _of_all_ranks(self, loss: Loss) -> Loss:
        """Backward; the gradients, and all that adds up, are then those of the whole minibatch."""
        self.optimizer.zero_grad(set_to_none=False)
        loss.total.backward()  # type: ignore[no-untyped-call]
        whole = loss._replace(total=loss.total.detach().clone())
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        self.world.sum([*gradients, *whole[:-2]])
        extremes = torch.stack([whole.ratio_min, -whole.ratio_max]).unsqueeze(0)
        low, high = self.world.gathered(extremes, dim=0).amin(0)
        return whole._replace(ratio_min=low, ratio_max=-high)

    def _step(self, loss: Loss, gate: _Gate) -> dict[str, Tensor]:
        """Clip, and one Adam step that takes place only if the gate is open; statistics by name."""
        heads = torch.stack([_grad_norm(self.network.heads[name]) for name in HEAD_NAMES])
        critic = _grad_norm(self.network.critic)
        total = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.cfg.max_grad_norm)
        finite = loss.total.isfinite() & total.isfinite()
        taken = gate.judge(finite, loss.kl, self.cfg.target_kl)
        # A fused step leaves weights, moments and counters alone where found_inf is 1 (as GradScaler has it).
        self.optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        return loss.figures() | {
            "grad_norm": total, "head_grad_norm": heads, "critic_grad_norm": critic, "taken": taken,
            "finite": finite,
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, beside the network."""
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates, "streak": self._streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self._streak = state["streak"].to(self._device)


class _Gate:
    """Device-side decision whether the next step may change weights.

    Attributes:
        stopped: bool [], the policy has moved too far in this update.
        streak: int64 [], non-finite steps in a row up to now.
        longest: int64 [], the longest streak seen in this update.
    """

    def __init__(self, streak: Tensor) -> None:
        self.streak = self.longest = streak
        self.stopped = torch.zeros_like(streak, dtype=torch.bool)

    def judge(self, finite: Tensor, kl: Tensor, target_kl: float) -> Tensor:
        """bool []: take this step. A KL over the target refuses it and all later ones of the update."""
        if target_kl > 0:
            self.stopped = self.stopped | (kl > target_kl)
        self.streak = torch.where(finite, torch.zeros_like(self.streak), self.streak + 1)
        self.longest = torch.maximum(self.longest, self.streak)
        return finite & ~self.stopped


def _grad_norm(layer: nn.Module) -> Tensor:
    """L2 norm of a layer's gradient."""
    gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)
