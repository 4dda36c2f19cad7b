"""The rows of a map that seeds take and give back, by the kernel of `native_convolution`; CPUs, float32.

Every result is that of torch's own operations, bit for bit; there is one call instead of up to eight. Maps
are [B, n*C, H, W] in channels_last memory; a segment's are [B, k*C, H, W], of which rows[j] says whose the
j-th is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native_convolution as native


def is_taken(like: Tensor) -> bool:
    """True if the kernel moves rows of such a map."""
    return (
        like.device.type == "cpu"
        and like.dtype == torch.float32
        and like.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
        and bool(native.instruction_set())
    )


def take_rows(h: Tensor, n: int, rows: Tensor) -> Tensor:
    """Copies of some rows of a map, [B, k*C, H, W]."""
    k, channels = len(rows), h.shape[1] // n
    out = torch.empty(
        (h.shape[0], k * channels, *h.shape[2:]), dtype=h.dtype, memory_format=torch.channels_last
    )
    _call("take_rows", h, n, rows, range(k), x=out)
    return out


def blend_rows(
    h: Tensor, n: int, rows: Tensor, part: range, x: Tensor, s: Tensor, tanh: Tensor | None, strength: Tensor
) -> None:
    """Add strength * (s - x), or strength * x * tanh, to rows of a map, in place, where there is a strength.

    Args:
        part: of the segment's rows.
        tanh: [B, H, W, len(part), C].
        strength: [1, 1, 1, k], [B, 1, 1, k] or [B, H, W, k].
    """
    _call("blend_rows", h, n, rows, part, x=x, s=s, tanh=tanh, strength=strength)


def derive_rows(
    grad: Tensor,
    n: int,
    rows: Tensor,
    part: range,
    x: Tensor,
    s: Tensor | None,
    tanh: Tensor | None,
    strength: Tensor,
    to_x: Tensor | None,
    to_s: Tensor,
    sums: Tensor | None,
    *,
    isolated: bool,
) -> None:
    """Write the gradients of x and s of `blend_rows`; an isolated seed's are 0 and that of the map.

    Args:
        s: read for `sums` alone.
        sums: [1 or B, 1 or H, 1 or W, len(part), C], as the strength; to it is added the gradient of the
            strength by channel, one pixel after the other. None where that is not wanted.
    """
    _call(
        "derive_rows",
        grad,
        n,
        rows,
        part,
        x=x,
        s=s,
        tanh=tanh,
        strength=strength,
        to_x=to_x,
        to_s=to_s,
        sums=sums,
        isolated=isolated,
    )


def add_rows(h: Tensor, n: int, rows: Tensor, part: range, x: Tensor, audible: Tensor | None) -> None:
    """Add the rows of x that are audible, bool [k], to those of a map, in place."""
    _call("add_rows", h, n, rows, part, x=x, audible=audible)


def _call(
    name: str,
    host: Tensor,
    n: int,
    rows: Tensor,
    part: range,
    *,
    x: Tensor,
    s: Tensor | None = None,
    tanh: Tensor | None = None,
    strength: Tensor | None = None,
    audible: Tensor | None = None,
    to_x: Tensor | None = None,
    to_s: Tensor | None = None,
    sums: Tensor | None = None,
    isolated: bool = False,
) -> None:
    """Call the kernel with arguments in the order of `RowCall` in its source."""
    batch, channels, height, width = host.shape
    pixels = batch * height * width
    alike = pixels
    if strength is not None:
        alike = pixels * len(rows) // strength.numel()
        strength = strength.contiguous()
    tensors = (host, x, s, tanh, strength, rows, audible, to_x, to_s, sums)
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    sizes = pixels, n, len(rows), channels // n, part.start, part.stop, isolated, alike
    getattr(native.kernel, name)(*addresses, *sizes)
