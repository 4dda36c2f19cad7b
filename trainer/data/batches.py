"""Batches for n envs at once: each env walks the whole training set in an order of its own, or all in one."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import rng
from .augment import Augment
from .dataset import Dataset, Split

ALL_ENVS = -1
"""In the place of an env's index: the walk that all envs share."""


class Images:
    """A split, laid out for gathering, that hands out normalised stacked inputs.

    Args:
        dtype: of the inputs it makes.
    """

    def __init__(self, split: Split, dataset: Dataset, dtype: torch.dtype) -> None:
        self.pixels_MHWC = split.images.permute(0, 2, 3, 1).contiguous()
        self.labels_M = split.labels
        self._scale = 1.0 / dataset.std
        self._shift = -dataset.mean * self._scale
        self._dtype = dtype

    def __len__(self) -> int:
        return self.labels_M.shape[0]

    def inputs(self, index_nB: Tensor) -> Tensor:
        """[B, n*C, H, W] in channels_last memory: images `index_nB[i]` as the input of env i."""
        return self.normalised(self.chosen(index_nB))

    def chosen(self, index_nB: Tensor) -> Tensor:
        """uint8 [B, n, H, W, C]: images `index_nB[i]` for env i."""
        n, batch = index_nB.shape
        pixels = self.pixels_MHWC.index_select(0, index_nB.t().flatten())
        return pixels.view(batch, n, *pixels.shape[1:])

    def normalised(self, chosen: Tensor) -> Tensor:
        """[B, n*C, H, W] in channels_last memory from uint8 [B, n, H, W, C]."""
        batch, n, height, width, channels = chosen.shape
        planes = chosen.flatten(2, 3).transpose(2, 3).reshape(batch, n * channels, height * width)
        pixels = planes.transpose(1, 2).contiguous()
        return self._scaled(pixels.view(batch, height, width, n * channels), n)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images [B, C, H, W] and labels [B] from `start` to `stop`, or to the end; the same for all envs."""
        return self._scaled(self.pixels_MHWC[start:stop], 1), self.labels_M[start:stop]

    def _scaled(self, pixels: Tensor, n: int) -> Tensor:
        """[B, n*C, H, W] in channels_last memory from uint8 [B, H, W, n*C]."""
        scale, shift = self._scale.repeat(n).to(self._dtype), self._shift.repeat(n).to(self._dtype)
        return torch.addcmul(shift, pixels.to(self._dtype), scale).permute(0, 3, 1, 2)


class Batches:
    """Where each env is in its walk: without replacement, reshuffled at every pass, stateless.

    The walk of an env in a round is the endless row of its passes; step t of the round takes images
    t*B .. t*B+B-1 of it, so a batch may end one pass and begin the next.

    Args:
        envs: int64 [n], global indices.
        seed: of the run.
        size: B.
        augment: what is done to the images, drawn anew for every env, round and step.
        shared: all envs take the same walk.
    """

    def __init__(
        self, images: Images, envs: Tensor, seed: int, size: int, *, augment: Augment | None = None,
        shared: bool = False,
    ) -> None:  # fmt: skip
        self.images = images
        self._envs, self._seed, self._size = len(envs), seed, size
        self._walkers = torch.full_like(envs[:1], ALL_ENVS) if shared else envs
        self._augment = augment
        self._orders: dict[tuple[int, int], Tensor] = {}

    def at(self, round_: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W], or [B, C, H, W] where they are shared, and labels [n, B] of one step."""
        index = self.indices(round_, step)
        chosen = self.images.chosen(index)
        if self._augment is not None:
            keys = rng.key(self._seed, rng.Purpose.AUGMENT, self._walkers, round_, step)
            chosen = self._augment(chosen, keys)
        return self.images.normalised(chosen), self.images.labels_M[index].expand(self._envs, -1)

    def indices(self, round_: int, step: int) -> Tensor:
        """int64 [n, B], or [1, B] where they are shared: which training images each env sees."""
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
            keys = rng.key(self._seed, rng.Purpose.ORDER, self._walkers, round_, pass_)
            self._orders[round_, pass_] = rng.permutation(keys, len(self.images))
        return self._orders[round_, pass_]
