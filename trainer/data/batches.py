"""Batches for n envs at once: each env walks the whole training set in an order of its own, or all in one."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import rng
from .task import Examples

ALL_ENVS = -1
"""In the place of an env's index: the walk that all envs share."""


class Batches:
    """Where each env is in its walk: without replacement, reshuffled at every pass, stateless.

    The walk of an env in a round is the endless row of its passes; step t of the round takes
    examples t*B .. t*B+B-1 of it, so a batch may end one pass and begin the next.

    Args:
        envs: int64 [n], global indices.
        seed: of the run.
        size: B.
        shared: all envs take the same walk.
    """

    def __init__(
        self, examples: Examples, envs: Tensor, seed: int, size: int, *, shared: bool = False
    ) -> None:
        self.examples = examples
        self._envs, self._seed, self._size = len(envs), seed, size
        self._walkers = torch.full_like(envs[:1], ALL_ENVS) if shared else envs
        self._orders: dict[tuple[int, int], Tensor] = {}

    def at(self, round_: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W], or [B, C, H, W] where they are shared, and labels [n, L] of one step."""
        keys = None
        if self.examples.varies:
            keys = rng.key(self._seed, rng.Purpose.AUGMENT, self._walkers, round_, step)
        x, labels = self.examples.batch(self.indices(round_, step), keys)
        return x, labels.expand(self._envs, -1)

    def indices(self, round_: int, step: int) -> Tensor:
        """int64 [n, B], or [1, B] where they are shared: which training examples each env sees."""
        total, begin = len(self.examples), step * self._size
        parts, taken = [], 0
        while taken < self._size:
            pass_, offset = divmod(begin + taken, total)
            parts.append(self._order(round_, pass_)[:, offset : offset + self._size - taken])
            taken += parts[-1].shape[1]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _order(self, round_: int, pass_: int) -> Tensor:
        if (round_, pass_) not in self._orders:
            while len(self._orders) > 1:
                self._orders.pop(next(iter(self._orders)))
            keys = rng.key(self._seed, rng.Purpose.ORDER, self._walkers, round_, pass_)
            self._orders[round_, pass_] = rng.permutation(keys, len(self.examples))
        return self._orders[round_, pass_]
