"""When a PPO update ends before all of its passes are over, and which of its steps are taken."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.config.policy_options import PPOConfig


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
        """Whether the update ends before the step of a minibatch; waits for the device.

        Args:
            kl: [] of the minibatch, from the policy that acted.
            finite: bool [], of its loss; where it is false the minibatch does not tell how far the policy has
                moved.
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
