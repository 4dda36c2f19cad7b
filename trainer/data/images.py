"""The images of a split as inputs: gathered, moved and mirrored where asked for, normalised."""

from __future__ import annotations

import torch
from torch import Tensor

from esper_overwatch.trainer.compute import native_images

from .augment import Augment


class Images:
    """Images laid out for gathering.

    Args:
        images: uint8 [M, C, H, W].
        labels: int64 [M].
        mean: float64 [C], that inputs are normalised by, like `std`.
        std: float64 [C].
        dtype: of the inputs.
        augment: what is done to the images of a batch.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        mean: Tensor,
        std: Tensor,
        dtype: torch.dtype,
        augment: Augment | None = None,
    ) -> None:
        pixels = images.permute(0, 2, 3, 1).contiguous()
        # `contiguous` leaves the stride of a single channel as it is, by which operations choose their format
        self.pixels_MHWC = pixels.view(-1).view(pixels.shape)
        self.labels_M = labels
        self._scale, self._shift = (1.0 / std).to(dtype), (-mean / std).to(dtype)
        self._table = native_images.make_table(self._scale, self._shift)
        self._augment = augment

    lengths: list[int] | None = None
    absent: Tensor | None = None

    def __len__(self) -> int:
        return self.labels_M.shape[0]

    @property
    def answers(self) -> int:
        """Labels in all: one per image."""
        return len(self)

    @property
    def numbers(self) -> int:
        """Numbers in one image."""
        return self.pixels_MHWC[0].numel()

    @property
    def varies(self) -> bool:
        """True if a batch depends on keys."""
        return self._augment is not None

    def batch(self, index_nB: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W] and labels [n, B] for images `index_nB[i]` of env i.

        Args:
            keys: int64 [n], of what happens to the images; needed where they vary.
        """
        taken = native_images.is_taken(self.pixels_MHWC, len(index_nB), self._table.dtype)
        if taken and self._augment is None:
            inputs = native_images.scale_images(self.pixels_MHWC, index_nB.t(), self._table)
            return inputs, self.labels_M.take(index_nB)
        chosen = self.chosen(index_nB)
        if self._augment is not None:
            assert keys is not None, "images that vary need keys"
            chosen = self._augment(chosen, keys)
        return self.normalised(chosen), self.labels_M.take(index_nB)

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
        scale, shift = (values.expand(n, -1).clone().view(-1) for values in (self._scale, self._shift))
        return torch.addcmul(shift, pixels, scale).permute(0, 3, 1, 2)
