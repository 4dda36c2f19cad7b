"""What a seed adds to its input: a branch times a gain that each network has of its own.

Maps are [B, n*C, H, W], gains [n]. Gradients of gains are sums of products number by number.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .pointwise import FusedFormula
from .stacked_ops import PRODUCTS, affine, channel_sums, group_norm, norm_groups, per_channel, to_rows

RECTIFIED_PRODUCT = FusedFormula(
    """template <typename T> void rectified_product(T branch, T factor, T& out) {
        out = branch <= T(0) ? T(0) : branch * factor;
    }""",
    1,
    lambda branch, factor: (torch.relu(branch) * factor,),
)
"""relu(branch) * factor."""
RECTIFIED_PRODUCTS = FusedFormula(
    """template <typename T> void rectified_products(T g, T branch, T factor, T& by_factor, T& by_branch) {
        by_factor = g * (branch <= T(0) ? T(0) : branch);
        by_branch = branch <= T(0) ? T(0) : g * factor;
    }""",
    2,
    lambda g, branch, factor: (g * torch.relu(branch), (g * factor).masked_fill_(branch <= 0.0, 0.0)),
)
"""Its gradients."""
DIFFERENCE = FusedFormula(
    "template <typename T> void difference(T x, T other, T factor, T& out) { out = factor * (other - x); }",
    1,
    lambda x, other, factor: ((other - x).mul_(factor),),
)
"""(other - x) * factor."""
DIFFERENCE_GRADIENT = FusedFormula(
    """template <typename T> void difference_gradient(
        T g, T x, T other, T factor, T& by_factor, T& by_other, T& by_x
    ) {
        by_factor = g * (other - x);
        by_other = g * factor;
        by_x = -by_other;
    }""",
    3,
    lambda g, x, other, factor: (g * (other - x), g * factor, g * -factor),
)
"""Its gradients."""


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, branch: Tensor, gain: Tensor, rectified: bool) -> Tensor:
        factor = per_channel(gain, branch.shape[1] // len(gain))[:, None, None]
        ctx.save_for_backward(branch, gain, factor)
        ctx.products = RECTIFIED_PRODUCTS if rectified else PRODUCTS
        return RECTIFIED_PRODUCT(branch, factor)[0] if rectified else branch * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        branch, gain, factor = ctx.saved_tensors
        by_factor, to_branch = ctx.products(grad, branch, factor)
        return to_branch, _network_sums(by_factor, len(gain)), None


def scaled(branch: Tensor, gain: Tensor, *, rectified: bool = False) -> Tensor:
    """gain * branch.

    Args:
        rectified: whether a ReLU is behind the branch.
    """
    if rectified and branch.device.type == "cpu":
        branch, rectified = torch.relu(branch), False
    out: Tensor = _Scaled.apply(branch, gain, rectified)  # type: ignore[no-untyped-call]
    return out


class _Towards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor, gain: Tensor) -> Tensor:
        factor = per_channel(gain, x.shape[1] // len(gain))[:, None, None]
        ctx.save_for_backward(x, other, gain, factor)
        return DIFFERENCE(x, other, factor)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, other, gain, factor = ctx.saved_tensors
        by_factor, to_other, to_x = DIFFERENCE_GRADIENT(grad, x, other, factor)
        return to_x, to_other, _network_sums(by_factor, len(gain))


def towards(x: Tensor, other: Tensor, gain: Tensor) -> Tensor:
    """gain * (other - x)."""
    out: Tensor = _Towards.apply(x, other, gain)  # type: ignore[no-untyped-call]
    return out


def towards_group_norm(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    """gain * (group_norm(x, weight, bias) - x), with weight and bias [n, C]."""
    if x.device.type != "cpu":
        return towards(x, group_norm(x, weight, bias), gain)
    # Bits are not to depend on whether a gradient of x is asked for, which those of `group_norm` do.
    normed = affine(F.group_norm(x, norm_groups(*weight.shape)), weight.flatten(), bias.flatten())
    return towards(x, normed, gain)


def _network_sums(x: Tensor, n: int) -> Tensor:
    """Sums over each network's numbers: [n]."""
    if x.device.type != "cpu":
        return to_rows(x, n).sum((0, 1, 2, 4))
    return channel_sums(x, 1).view(n, -1).sum(1)
