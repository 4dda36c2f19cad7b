"""Rows of a map, by the kernel of `native_convolution` where that runs: torch copies small pieces slowly."""

from __future__ import annotations

import torch
from torch import Tensor

from . import native_convolution as native
from .stacked_ops import to_channels, to_rows


def take_rows(x: Tensor, n: int, rows: Tensor) -> Tensor:
    """The channels [B, k*C, H, W] of k of the n hosts that a map [B, n*C, H, W] has, in channels_last memory.

    Args:
        rows: int64 [k], which of the n each is.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or not native.instruction_set():
        return to_channels(to_rows(x, n).index_select(3, rows))
    assert native.kernel is not None
    x, (batch, channels, height, width) = native.laid_out(x), x.shape
    size = (batch, channels // n * len(rows), height, width)
    out = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    addresses = [tensor.data_ptr() for tensor in (x, rows, out)]
    native.kernel.take_rows(*addresses, batch * height * width, n, len(rows), channels // n)
    return out
