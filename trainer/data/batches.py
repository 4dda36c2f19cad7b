"""Batches for n envs at once: each env walks the whole training set in an order of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import rng
from ..stacked import to_channels
from .dataset import Dataset, Split


class Images:
    """A split, laid out for gathering, that hands out normalised stacked inputs.

    Args:
        dtype: of the inputs it makes.
    """

    def __init__(self, split: Split, dataset: Dataset, dtype: torch.dtype) -> None:
        self.pixels_MHWC = split.images.permute(0, 2, 3, 1).contiguous()
        self.labels_M = split.labels
        self._mean = dataset.mean.to(dtype)
        self._scale = (1.0 / dataset.std).to(dtype)
        self._dtype = dtype

    def __len__(self) -> int:
        return self.labels_M.shape[0]

    def inputs(self, index_nB: Tensor) -> Tensor:
        """[B, n*C, H, W] in channels_last memory: images `index_nB[i]` as the input of env i."""
        n, batch = index_nB.shape
        chosen = self.pixels_MHWC.index_select(0, index_nB.t().flatten())
        _, height, width, channels = chosen.shape
        stacked = chosen.view(batch, n, height, width, channels).permute(0, 2, 3, 1, 4)
        return to_channels((stacked.to(self._dtype) - self._mean) * self._scale)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images [B, C, H, W] and labels [B] from `start` to `stop`, or to the end; the same for all envs."""
        one = (self.pixels_MHWC[start:stop].to(self._dtype) - self._mean) * self._scale
        return one.permute(0, 3, 1, 2), self.labels_M[start:stop]


class Batches:
    """Where each env is in its walk: without replacement, reshuffled at every pass, stateless.

    The walk of an env in a round is the endless row of its passes; step t of the round takes images
    t*B .. t*B+B-1 of it, so a batch may end one pass and begin the next.

    Args:
        envs: int64 [n], global indices.
        seed: of the run.
        size: B.
    """

    def __init__(self, images: Images, envs: Tensor, seed: int, size: int) -> None:
        self.images = images
        self._envs, self._seed, self._size = envs, seed, size
        self._orders: dict[tuple[int, int], Tensor] = {}

    def at(self, round_: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W] and labels [n, B] of one step of a round."""
        index = self.indices(round_, step)
        return self.images.inputs(index), self.images.labels_M[index]

    def indices(self, round_: int, step: int) -> Tensor:
        """int64 [n, B]: which training images each env sees."""
        total, begin = len(self.images), step * self._size
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
            keys = rng.key(self._seed, rng.Purpose.ORDER, self._envs, round_, pass_)
            self._orders[round_, pass_] = rng.permutation(keys, len(self.images))
        return self._orders[round_, pass_]
