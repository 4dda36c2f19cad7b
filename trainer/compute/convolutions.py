"""Convolutions of hosts and seeds: by torch, or by our own kernel together with what follows them.

Maps are [B, n*C, H, W], weights [n, O, I/groups, k, k], scales, shifts and averages [n, O] or [n*O], gains
[n].
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native_convolution as native
from . import native_norm, native_rows
from .execution_plan import Convolution
from .stacked_ops import (
    batch_norm,
    batch_norm_average,
    conv,
    group_norm,
    max_pool,
    residual,
    towards_group_norm,
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

    def runs_one_as_several(self, _like: Tensor) -> bool:
        """True if a network alone is computed bit for bit as among others, from tensors like this one."""
        return False

    def moves_rows(self, like: Tensor) -> bool:  # noqa: ARG002
        """True if our own kernel gathers and grafts the rows of a map like this one."""
        return False

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

    def group_normed(self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """relu(group norm(convolution)), as `stacked_ops.group_norm`."""
        return torch.relu(group_norm(self(x, weight), scale, shift))

    def normed_residual(
        self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, skip: Tensor, gain: Tensor
    ) -> Tensor:
        """skip + gain * group_normed(x)."""
        return residual(skip, self.group_normed(x, weight, scale, shift), gain)

    def towards_group_norm(self, x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        """x + gain * (group norm(x) - x), as `stacked_ops.towards_group_norm`."""
        return towards_group_norm(x, weight, bias, gain)


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

    def runs_one_as_several(self, _like: Tensor) -> bool:
        return _like.device.type == "cpu" and _like.dtype == torch.float32 and not native.absence()

    def moves_rows(self, like: Tensor) -> bool:
        return native_rows.is_taken(like)

    def biased_relu(self, x: Tensor, weight: Tensor, bias: Tensor, *, pool: bool = False) -> Tensor:
        if torch.is_grad_enabled() or not native.is_taken(x, weight, pool=pool):
            return super().biased_relu(x, weight, bias, pool=pool)
        return native.convolve(x, weight, bias, relu=True, pool=pool)

    def batch_normed(
        self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, *, pool: bool = False
    ) -> Tensor:
        if not native.is_taken(x, weight, pool=pool):
            return super().batch_normed(x, weight, scale, shift, pool=pool)
        return native.convolve_normed(x, weight, scale, shift, of_batch=True, pool=pool)[0]

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
        out, found_mean, found_variance = native.convolve_normed(x, weight, *norm, of_batch=True, pool=pool)
        count = out.numel() // out.shape[1]
        mean.lerp_(found_mean.view_as(mean), 1.0 / batches)
        variance.lerp_(found_variance.view_as(variance) * (count / (count - 1)), 1.0 / batches)
        return out

    def group_normed(self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        if not native.is_taken(x, weight):
            return super().group_normed(x, weight, scale, shift)
        return native.convolve_normed(x, weight, scale, shift, of_batch=False)[0]

    def normed_residual(
        self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, skip: Tensor, gain: Tensor
    ) -> Tensor:
        if not native.is_taken(x, weight):
            return super().normed_residual(x, weight, scale, shift, skip, gain)
        return native.convolve_normed(x, weight, scale, shift, skip, gain, of_batch=False)[0]

    def towards_group_norm(self, x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        if not native_norm.is_taken(x):
            return super().towards_group_norm(x, weight, bias, gain)
        return native_norm.towards_group_norm(x, weight, bias, gain)


GROUPED = Conv()
CONVOLUTIONS: dict[Convolution, Conv] = {
    "grouped": GROUPED,
    "native": NativeConv(),
    "unfold": Conv(unfold=True),
}
