"""Batches for n envs at once: each env walks the training set in an order of its own, or all in one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.device import upload

from .task import Examples

MAX_PREPARED_NUMBERS = 2**18
"""Numbers of the inputs that are made together, where several steps have fewer: of digits for 4 envs, 16."""
MAX_PREPARED_NUMBERS_GPU = 2**23
"""Likewise on a GPU, where each operation costs its host some microseconds: of digits for 64 envs, 32."""
ALL_ENVS = -1
"""In the place of an env's index: the walk that all envs share."""


class Batches:
    """Position of each env in its walk: without replacement, reshuffled at every pass, stateless.

    The walk of an env in a round is the endless row of its passes; step t of the round takes
    examples t*B .. t*B+B-1 of it, so a batch may end one pass and begin the next.

    Args:
        envs: int64 [n], global indices.
        size: B.
        shared: all envs take the same walk.
    """

    def __init__(
        self, examples: Examples, envs: Tensor, seed: int, size: int, *, shared: bool = False
    ) -> None:
        self.examples = examples
        self._envs, self._seed, self._size = len(envs), seed, size
        self._walkers = torch.full_like(envs[:1], ALL_ENVS) if shared else envs
        self._orders: dict[tuple[int, int, int], Tensor] = {}
        self._rows: dict[int, Tensor] = {}
        """bool [n, 1], the envs with so many examples, where not all have as many."""
        numbers = size * len(self._walkers) * examples.numbers
        most = MAX_PREPARED_NUMBERS if envs.device.type == "cpu" else MAX_PREPARED_NUMBERS_GPU
        self._together = 1 if examples.varies else max(1, most // numbers)
        """Steps whose batches are made at once, from one that is a multiple of it."""
        self._made: tuple[int, int, Tensor, Tensor] | None = None
        """Round, first step, inputs and labels of those that were made last."""

    def replace_examples(self, examples: Examples) -> None:
        """Replace the examples; batches made of the old ones are dropped."""
        self.examples, self._made = examples, None
        self._orders.clear()
        self._rows.clear()

    def at(self, round_: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W], or [B, C, H, W] where they are shared, and labels [n, L] of one step."""
        if self.examples.varies:
            keys = rng.key(self._seed, rng.Purpose.AUGMENT, self._walkers, round_, step)
            x, labels = self.examples.batch(self.indices(round_, step), keys)
            return x, labels.expand(self._envs, -1)
        first = step - step % self._together
        if self._made is None or self._made[:2] != (round_, first):
            inputs, labels = self.examples.batch(self.indices(round_, first, self._together))
            by_step = labels.view(len(labels), self._together, -1).transpose(0, 1).contiguous()
            self._made = round_, first, inputs, by_step
        *_, inputs, labels_knL = self._made
        place = step - first
        return inputs.narrow(0, place * self._size, self._size), labels_knL[place].expand(self._envs, -1)

    def indices(self, round_: int, step: int, steps: int = 1) -> Tensor:
        """Indices of the training examples that each env sees from a step on.

        Returns:
            int64 [n, steps*B], or [1, steps*B] where they are shared.
        """
        lengths = self.examples.lengths
        if lengths is None or len(set(lengths)) == 1:
            return self._walk(len(self.examples), round_, step, steps)
        found = self._walkers.new_empty(len(lengths), steps * self._size)
        if not self._rows:
            totals = np.unique(lengths)
            rows = upload(totals[:, None, None] == np.array(lengths)[:, None], found.device)
            self._rows = dict(zip(totals.tolist(), rows, strict=True))
        for total, rows in self._rows.items():
            found = torch.where(rows, self._walk(total, round_, step, steps), found)
        return found

    def _walk(self, total: int, round_: int, step: int, steps: int) -> Tensor:
        """`indices` for envs that have `total` examples."""
        begin, size = step * self._size, steps * self._size
        parts, taken = [], 0
        while taken < size:
            pass_, offset = divmod(begin + taken, total)
            parts.append(self._order(total, round_, pass_)[:, offset : offset + size - taken])
            taken += parts[-1].shape[1]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _order(self, total: int, round_: int, pass_: int) -> Tensor:
        known = (total, round_, pass_)
        if known not in self._orders:
            while sum(length == total for length, *_ in self._orders) > 1:
                self._orders.pop(next(key for key in self._orders if key[0] == total))
            keys = rng.key(self._seed, rng.Purpose.ORDER, self._walkers, round_, pass_)
            self._orders[known] = rng.permutation(keys, total)
        return self._orders[known]
