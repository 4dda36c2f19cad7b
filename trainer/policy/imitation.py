"""Behaviour cloning: a policy learns to act as was demonstrated, and its critic what that earned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.device import exact_float32

from .gae import gae
from .ppo import PPO
from .rollout import Rollout


class Lesson(NamedTuple):
    """Sequences whose actions are to be imitated.

    Attributes:
        rollout: [T', N'].
        is_imitated_TN: bool, the steps that are.
        is_whole: whether these are complete episodes in which these actions were taken: only then do their
            rewards say what the actions earn.
    """

    rollout: Rollout
    is_imitated_TN: Tensor
    is_whole: bool

    @classmethod
    def whole(cls, rollout: Rollout) -> Lesson:
        """A lesson of complete episodes."""
        return cls(rollout, torch.ones_like(rollout.reward, dtype=torch.bool), is_whole=True)


def imitate(
    learner: PPO,
    lessons: Sequence[Lesson],
    round: int,
    *,
    passes: int,
    minibatches: int,
    learning_rate: float,
    on_pass: Callable[[int, int], None] | None = None,
) -> float:
    """Several passes over all lessons; each minibatch has its share of every one.

    L = -(1 / T) sum_t sum_h ln p_h(a_h) over the imitated steps t and the heads h that matter for the op,
    averaged over a lesson's sequences and added up over the lessons, + c_v mean (V - R)^2 / 2 of whole
    episodes; T is the length of the longest lesson, R the sum of the rewards from t on, discounted by
    `ppo.gamma`, in normalised units.

    Args:
        learner: its network is changed. Its optimiser is not: the moments of these gradients, which end up
            small, would make the first steps of PPO huge.
        lessons: of all ranks; every rank computes the same.
        round: keys the order of the minibatches.
        minibatches: of each pass.
        learning_rate: of Adam, which begins again; it falls linearly to 0.
        on_pass: called after each pass with how many are done, and how many there are.

    Returns:
        Mean of -ln p(a) over the last pass, nats per step.
    """
    device = lessons[0].rollout.reward.device
    longest = max(len(lesson.rollout.reward) for lesson in lessons)
    steps = torch.stack([lesson.is_imitated_TN.sum() for lesson in lessons]).sum()
    targets = [_value_targets(learner, lesson) for lesson in lessons]
    keys = rng.key(learner.seed, rng.Purpose.IMITATION, round, torch.arange(passes, device=device))
    orders = [rng.permutation(keys, lesson.rollout.reward.shape[1]) for lesson in lessons]
    optimizer = torch.optim.Adam(learner.network.parameters(), lr=learning_rate, eps=1e-5, fused=True)
    missed = torch.zeros((), device=device)
    for done in range(passes):
        missed = torch.zeros((), device=device)
        parts = zip(*(order[done].tensor_split(minibatches) for order in orders), strict=True)
        for part, shares in enumerate(parts):
            loss = torch.zeros((), device=device)
            with exact_float32(device):
                for lesson, target, envs in zip(lessons, targets, shares, strict=True):
                    log_prob, value_loss = _evaluate(learner, lesson, target, envs)
                    loss = loss - log_prob / max(1, len(envs)) / longest
                    loss = loss + learner.cfg.value_coefficient * value_loss
                    missed -= log_prob.detach() / steps
                share = (done * minibatches + part) / (passes * minibatches)
                optimizer.param_groups[0]["lr"] = learning_rate * (1.0 - share)
                _step(learner, optimizer, loss)
        if on_pass is not None:
            on_pass(done + 1, passes)
    return float(missed)


def _evaluate(learner: PPO, lesson: Lesson, target_TN: Tensor | None, envs: Tensor) -> tuple[Tensor, Tensor]:
    """ln p of a minibatch's imitated actions, added up, and the value loss, 0 without targets."""
    network, batch = learner.network, lesson.rollout.envs(envs)
    out = network(batch.observation, network.initial(len(envs)), batch.reset)
    log_prob = learner.space.evaluate(out.logits, batch.actions, batch.legal).log_prob.sum(-1)
    value_loss = torch.zeros_like(log_prob[0].sum())
    if target_TN is not None:
        value_loss = (out.value - target_TN[:, envs]).square().mean() / 2
    return (log_prob * lesson.is_imitated_TN[:, envs]).sum(), value_loss


def _step(learner: PPO, optimizer: torch.optim.Adam, loss: Tensor) -> None:
    """Take a step of Adam; none where the gradient is not finite."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(learner.network.parameters(), learner.cfg.max_grad_norm)
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
    optimizer.step()


def _value_targets(learner: PPO, lesson: Lesson) -> Tensor | None:
    """Targets of the critic, in normalised units; None where the lesson has none."""
    if not lesson.is_whole:
        return None
    network, reward = learner.network, lesson.rollout.reward.double()
    returns = gae(reward, torch.zeros_like(reward), gamma=learner.cfg.gamma, lam=1.0)[1].float()
    network.rescale_value(returns)
    target: Tensor = network.value_norm(returns.unsqueeze(-1)).squeeze(-1)
    return target
