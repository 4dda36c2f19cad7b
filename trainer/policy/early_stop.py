"""Early stop of a PPO update, and the choice of steps that are taken."""

from __future__ import annotations

import torch
from torch import Tensor

from esper_overwatch.trainer.config.policy_options import PPOConfig


class EarlyStop:
    """Decides whether a step may change weights, and when an update ends.

    Args:
        streak: int64 [], non-finite steps in a row up to now.
        cfg: with the KL divergence beyond which the update ends.

    Attributes:
        stopped: whether the policy has moved too far in this update.
        streak: see above.
        longest: int64 [], the longest streak seen in this update.
    """

    def __init__(self, streak: Tensor, cfg: PPOConfig) -> None:
        self.streak = self.longest = streak
        self.stopped = False
        self._cfg = cfg
        self._pass: list[tuple[Tensor, Tensor]] = []

    def stops_at(self, kl: Tensor, finite: Tensor) -> bool:
        """True if the update ends before the step of a minibatch; waits for the device.

        Args:
            kl: [] of the minibatch, from the policy that acted.
            finite: bool [], of its loss; without it the minibatch does not show how far the policy has moved.
        """
        if self._cfg.target_kl > 0:
            if self._cfg.kl_per == "minibatch":
                self.stopped = bool((kl > self._cfg.target_kl) & finite)
            else:
                self._pass.append((kl, finite))
        return self.stopped

    def check_pass(self) -> None:
        """End the update with the pass that is over now, if its mean KL says so; waits for the device."""
        if self._pass:
            kl, finite = (torch.stack(column) for column in zip(*self._pass, strict=True))
            self.stopped = bool(kl.where(finite, 0.0).sum() > self._cfg.target_kl * finite.sum())
            self._pass.clear()

    def allows_step(self, finite: Tensor) -> Tensor:
        """bool []: whether to apply a step, whose loss and gradient are finite or not."""
        self.streak = torch.where(finite, torch.zeros_like(self.streak), self.streak + 1)
        self.longest = torch.maximum(self.longest, self.streak)
        return finite


class MaskedStop:
    """`EarlyStop` for replayed steps: decides on the device, in fixed buffers.

    Attributes:
        stopped: bool [], whether the policy has moved too far in this update.
        streak: int64 [], non-finite steps in a row up to now.
        longest: int64 [], the longest streak seen in this update.
    """

    def __init__(self, device: torch.device) -> None:
        self.stopped = torch.zeros((), dtype=torch.bool, device=device)
        self.streak, self.longest, self._num_finite = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        self._kl = torch.zeros((), device=device)
        """Sum over those minibatches of a pass whose loss is finite."""

    def tensors(self) -> list[Tensor]:
        """All that changes."""
        return [self.stopped, self.streak, self.longest, self._num_finite, self._kl]

    def begin(self, streak: Tensor) -> None:
        """Begin an update after a streak, int64 []."""
        self.streak.copy_(streak)
        self.longest.copy_(streak)
        for tensor in (self.stopped, self._num_finite, self._kl):
            tensor.zero_()

    def judge(
        self, kl: Tensor, finite: Tensor, finite_gradient: Tensor, *, target_kl: float, kl_per: str
    ) -> tuple[Tensor, Tensor]:
        """bool [] each: whether the update has not stopped, and whether to apply a minibatch's step.

        Args:
            kl, finite: see `EarlyStop.stops_at`.
            finite_gradient: bool [].
        """
        if target_kl > 0 and kl_per == "minibatch":
            self.stopped.logical_or_((kl > target_kl) & finite)
        elif target_kl > 0:
            self._kl.add_(kl.where(finite, 0.0))
            self._num_finite.add_(finite)
        goes_on = ~self.stopped
        applied = goes_on & finite & finite_gradient
        self._count(applied, goes_on)
        return goes_on, applied

    def end_pass(self, target_kl: float) -> None:
        """Stop where the mean KL of the pass that is over says so."""
        self.stopped.logical_or_(self._kl > target_kl * self._num_finite)
        self._num_finite.zero_()
        self._kl.zero_()

    def allows_step(self, finite: Tensor) -> Tensor:
        """`EarlyStop.allows_step`, for steps after a stop."""
        self._count(finite, torch.ones_like(finite))
        return finite

    def _count(self, applied: Tensor, counts: Tensor) -> None:
        following = torch.where(applied, 0, self.streak + 1)
        self.streak.copy_(torch.where(counts, following, self.streak))
        self.longest.copy_(torch.maximum(self.longest, self.streak))
