"""Convolutions of hosts and seeds: by torch, or by our own kernel together with what follows them.

Maps are [B, n*C, H, W], weights [n, O, I/groups, k, k], scales, shifts and averages [n, O] or [n*O], gains
[n].
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native_convolution as native
from .execution_plan import Convolution
from .stacked_ops import (
    batch_norm,
    batch_norm_average,
    conv,
    max_pool,
)


class Conv:
    """Convolution by torch.

    Args:
        unfold: see `stacked_ops.conv`.
    """

    def __init__(self, *, unfold: bool = False) -> None:
        self._unfold = unfold

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, stride: int = 1
    ) -> Tensor:
        """n convolutions, see `stacked_ops.conv`."""
        return conv(x, weight, bias, groups, stride, unfold=self._unfold)

    def biased_relu(self, x: Tensor, weight: Tensor, bias: Tensor, *, pool: bool = False) -> Tensor:
        """relu(convolution + bias), of x halved by `max_pool` where there is a `pool`."""
        return torch.relu_(self(max_pool(x) if pool else x, weight, bias))

    def batch_normed(
        self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, *, pool: bool = False
    ) -> Tensor:
        """relu(batch norm(convolution)), by the statistics of the batch; `pool` as in `biased_relu`."""
        return torch.relu_(batch_norm(self(max_pool(x) if pool else x, weight), scale, shift))

    def batch_norm_averaged(
        self,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        mean: Tensor,
        variance: Tensor,
        batches: int,
        *,
        pool: bool = False,
    ) -> Tensor:
        """`batch_normed` that also updates the averages in place; the batch is number `batches`."""
        made = self(max_pool(x) if pool else x, weight)
        return torch.relu_(batch_norm_average(made, scale, shift, mean, variance, batches))


class NativeConv(Conv):
    """Convolution by our own kernel, fused with what follows it; by torch where the kernel does not apply."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, stride: int = 1
    ) -> Tensor:
        if not native.is_taken(x, weight, groups, stride):
            return super().__call__(x, weight, bias, groups, stride)
        if bias is None or not torch.is_grad_enabled():
            return native.convolve(x, weight, bias, groups)
        return native.convolve(x, weight, None, groups) + bias.flatten()[:, None, None]

    def biased_relu(self, x: Tensor, weight: Tensor, bias: Tensor, *, pool: bool = False) -> Tensor:
        if torch.is_grad_enabled() or not native.is_taken(x, weight, pool=pool):
            return super().biased_relu(x, weight, bias, pool=pool)
        return native.convolve(x, weight, bias, relu=True, pool=pool)

    def batch_normed(
        self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, *, pool: bool = False
    ) -> Tensor:
        if not native.is_taken(x, weight, pool=pool):
            return super().batch_normed(x, weight, scale, shift, pool=pool)
        return native.convolve_normed(x, weight, scale, shift, pool=pool)[0]

    def batch_norm_averaged(
        self,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        mean: Tensor,
        variance: Tensor,
        batches: int,
        *,
        pool: bool = False,
    ) -> Tensor:
        norm = scale, shift
        if not native.is_taken(x, weight, pool=pool):
            return super().batch_norm_averaged(x, weight, *norm, mean, variance, batches, pool=pool)
        out, found_mean, found_variance = native.convolve_normed(x, weight, *norm, pool=pool)
        count = out.numel() // out.shape[1]
        mean.lerp_(found_mean.view_as(mean), 1.0 / batches)
        variance.lerp_(found_variance.view_as(variance) * (count / (count - 1)), 1.0 / batches)
        return out


GROUPED = Conv()
CONVOLUTIONS: dict[Convolution, Conv] = {
    "grouped": GROUPED,
    "native": NativeConv(),
    "unfold": Conv(unfold=True),
}
