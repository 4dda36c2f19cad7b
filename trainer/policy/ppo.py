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
from ..config import PPOConfig
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
    """The objective of one minibatch and what it tells, all detached but `total`."""

    total: Tensor
    policy: Tensor
    value: Tensor
    kl: Tensor
    """KL(old || new) by the estimator r - 1 - ln r (Schulman, "Approximating KL divergence", 2020)."""
    clipped: Tensor
    """Share of factors whose ratio left 1 +- clip."""
    ratio_min: Tensor
    ratio_max: Tensor
    entropy: Tensor
    """Nats over the nats of a uniform choice among what was legal, 0..1."""
    head_entropy: Tensor
    """[heads], likewise; NaN where there was never a choice."""
    h_rms: Tensor
    c_rms: Tensor


def ppo_loss(
    network: ActorCritic,
    space: ActionSpace,
    batch: Rollout,
    advantage: Tensor,
    target: Tensor,
    cfg: PPOConfig,
) -> Loss:
    """Clipped surrogate, squared value error and entropy bonus.

    L = -mean_t sum_h min(r_h A, clip(r_h) A) + c_v mean (V - target)^2 / 2 - c_e mean_t sum_h H_h / ln n_h,
    over the heads h that matter for the op of step t; n_h is the number of legal choices.

    Args:
        batch: sequences [T, n].
        advantage: [T, n], normalised.
        target: [T, n], what the critic should say, in normalised units.
    """
    out = network(batch.observation, network.initial(batch.reset.shape[1]), batch.reset)
    now = space.evaluate(out.logits, batch.actions, batch.legal)
    log_ratio = now.log_prob - batch.log_prob
    ratio = log_ratio.exp()
    gain = advantage.unsqueeze(-1)
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * gain)
    policy = -(surrogate * now.relevant).sum(-1).mean()
    value = (out.value - target).square().mean() / 2

    free = now.choices > 1
    most = now.choices.to(ratio.dtype).log()
    normalised = (now.entropy / most.where(free, 1.0)).where(free, 0.0)
    bonus = normalised.sum(-1).mean()
    total = policy + cfg.value_coefficient * value - cfg.entropy_coefficient * bonus

    steps = (0, 1)
    with torch.no_grad():
        joint = log_ratio.sum(-1)
        clipped = ((ratio - 1).abs() > cfg.clip) & now.relevant
        return Loss(
            total=total,
            policy=policy.detach(),
            value=value.detach(),
            kl=(joint.exp() - 1 - joint).mean(),
            clipped=clipped.sum() / now.relevant.sum(),
            ratio_min=ratio.min(),
            ratio_max=ratio.max(),
            entropy=(now.entropy * free).sum() / (most * free).sum(),
            head_entropy=normalised.sum(steps) / free.sum(steps),
            h_rms=out.h.square().mean().sqrt(),
            c_rms=out.c.square().mean().sqrt(),
        )


class PPO:
    """Improves an actor-critic on rollouts.

    Args:
        network: policy and value function.
        space: its action heads.
        cfg: coefficients.
        seed: of the minibatches' order.
    """

    def __init__(self, network: ActorCritic, space: ActionSpace, cfg: PPOConfig, seed: int) -> None:
        self.network = network
        self.space = space
        self.cfg = cfg
        self.seed = seed
        self.updates = 0
        self._device = network.place.device
        self._streak = torch.zeros((), dtype=torch.int64, device=self._device)
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
            rollout: sequences [T, N].
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
            for envs in self._minibatches(returns.shape[1], epoch):
                loss = ppo_loss(
                    self.network, self.space, rollout.envs(envs), scaled[:, envs], target[:, envs], self.cfg
                )
                steps.append(self._step(loss, gate))
        self._streak = gate.streak
        self.updates += 1
        self.network.learn_normalisers(rollout.observation)
        figures = Figures.of(steps, rollout, advantage, returns, gate.longest)
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

    def _step(self, loss: Loss, gate: _Gate) -> dict[str, Tensor]:
        """Backward, clip, and one Adam step that takes place only if the gate is open; statistics by name."""
        self.optimizer.zero_grad(set_to_none=False)
        loss.total.backward()  # type: ignore[no-untyped-call]
        heads = torch.stack([_grad_norm(self.network.heads[name]) for name in HEAD_NAMES])
        critic = _grad_norm(self.network.critic)
        total = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.cfg.max_grad_norm)
        finite = loss.total.detach().isfinite() & total.isfinite()
        taken = gate.judge(finite, loss.kl, self.cfg.target_kl)
        # A fused step leaves weights, moments and counters alone where found_inf is 1 (as GradScaler has it).
        self.optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        figures = loss._asdict()
        del figures["total"]
        return figures | {
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
