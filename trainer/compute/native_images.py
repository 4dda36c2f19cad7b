"""Images as the inputs of hosts side by side, by the kernel of `native_convolution`; CPUs, float32.

A byte becomes a number by a table that torch's own operation has made, so that the bits are those of torch:
one pass in place of gathering, moving the hosts behind the pixels, and normalising.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native_convolution as native

LEVELS = 256
"""Values of a byte."""


def is_taken(images: Tensor, n: int, dtype: torch.dtype) -> bool:
    """True if the kernel makes inputs of these images for n hosts.

    A single channel of a single host is left to torch, which lays it out otherwise.
    """
    return (
        images.device.type == "cpu"
        and dtype == torch.float32
        and images.is_contiguous()
        and n * images.shape[-1] > 1
        and bool(native.instruction_set())
    )


def make_table(scale: Tensor, shift: Tensor) -> Tensor:
    """Value of each level of a channel: shift + level * scale, [C, 256] from [C]."""
    levels = torch.arange(LEVELS, dtype=torch.uint8, device=scale.device)
    return torch.addcmul(shift.unsqueeze(-1), levels, scale.unsqueeze(-1))


def scale_images(images: Tensor, index: Tensor, table: Tensor) -> Tensor:
    """Inputs [B, n*C, H, W] in channels_last memory.

    Args:
        images: uint8 [M, H, W, C].
        index: int64 [B, n], which image.
        table: `make_table` of [C].
    """
    (batch, n), (_, height, width, channels) = index.shape, images.shape
    out = torch.empty(
        (batch, n * channels, height, width), dtype=table.dtype, memory_format=torch.channels_last
    )
    index = index.contiguous()
    addresses = [tensor.data_ptr() for tensor in (images, index, table, out)]
    assert native.kernel is not None, "asked for by is_taken"
    native.kernel.scale_images(*addresses, batch, n, height * width, channels)
    return out
