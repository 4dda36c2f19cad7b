"""Random crops and flips of training images, for all envs at once, on the device that holds them.

The customary ones for small images (He et al., "Deep residual learning for image recognition", 2016, section
4.2): an image is moved by up to an eighth of its side, black where nothing was, and mirrored half the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng


class Augment:
    """Draws where each image goes from the key of its env.

    Args:
        kinds: any of "crop" and "flip".
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._crop, self._flip = "crop" in kinds, "flip" in kinds

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Move and mirror images of n envs.

        Args:
            images: uint8 [B, n, H, W, C].
            keys: int64 [n].

        Returns:
            uint8 [B, n, H, W, C].
        """
        batch, n, height, width, channels = images.shape
        words = rng.bits(keys, 3 * batch).view(n, batch, 3).transpose(0, 1)
        rows = self._moved(words[..., 0], height)
        columns = self._moved(words[..., 1], width)
        if self._flip:
            mirrored = words[..., 2:].remainder(2) == 1
            columns = torch.where(mirrored, width - 1 - columns, columns)
        inside = _within(rows, height).unsqueeze(3) & _within(columns, width).unsqueeze(2)
        source = rows.clamp(0, height - 1).unsqueeze(3) * width + columns.clamp(0, width - 1).unsqueeze(2)
        pixels = images.reshape(batch, n, height * width, channels)
        source = source.view(batch, n, height * width, 1).expand_as(pixels)
        moved = pixels.gather(2, source).view_as(images)
        return moved.masked_fill_(~inside.unsqueeze(4), 0)

    def _moved(self, words: Tensor, side: int) -> Tensor:
        """int64 [B, n, side]: from which row or column each comes; outside of 0..side-1: from nowhere."""
        places = torch.arange(side, device=words.device)
        if not self._crop:
            return places.expand(*words.shape, side)
        most = max(1, side // 8)
        return places + (words.remainder(2 * most + 1) - most).unsqueeze(-1)


def _within(places: Tensor, side: int) -> Tensor:
    return (places >= 0) & (places < side)
