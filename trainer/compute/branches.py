"""What a seed adds to its input: a branch times a gain that each network has of its own.

Maps are [B, n*C, H, W], gains [n]. Gradients of gains are sums of products number by number.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .pointwise import FusedFormula
from .stacked_ops import PRODUCTS, affine, channel_sums, group_norm, norm_groups, per_channel

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


SQUASHED_PRODUCT = FusedFormula(
    "template <typename T> void squashed_product(T x, T z, T& out) { out = x * ::tanh(T(0.5) * z); }",
    1,
    lambda x, z: (x * torch.tanh(0.5 * z),),
)
"""x * tanh(z / 2)."""


def _squashed_gradient(g: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    factor = torch.tanh(0.5 * z)
    return g * x * (0.5 * (1.0 - factor * factor)), g * factor


SQUASHED_GRADIENT = FusedFormula(
    """template <typename T> void squashed_gradient(T g, T x, T z, T& by_z, T& by_x) {
        const T factor = ::tanh(T(0.5) * z);
        by_z = g * x * (T(0.5) * (T(1) - factor * factor));
        by_x = g * factor;
    }""",
    2,
    _squashed_gradient,
)
"""Its gradients."""


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, branch: Tensor, gain: Tensor, rectified: bool) -> Tensor:
        ctx.save_for_backward(branch, gain)
        ctx.products = RECTIFIED_PRODUCTS if rectified else PRODUCTS
        factor, seen = _by_network(gain, branch)
        return _joined(RECTIFIED_PRODUCT(seen, factor)[0] if rectified else seen * factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        branch, gain = ctx.saved_tensors
        factor, grad, seen = _by_network(gain, grad, branch)
        by_factor, to_branch = ctx.products(grad, seen, factor)
        return _joined(to_branch), _network_sums(by_factor, len(gain)), None


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
        ctx.save_for_backward(x, other, gain)
        factor, *seen = _by_network(gain, x, other)
        return _joined(DIFFERENCE(*seen, factor)[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        *maps, gain = ctx.saved_tensors
        factor, *seen = _by_network(gain, grad, *maps)
        by_factor, to_other, to_x = DIFFERENCE_GRADIENT(*seen, factor)
        return _joined(to_x), _joined(to_other), _network_sums(by_factor, len(gain))


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


class _Squashed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, z)
        return SQUASHED_PRODUCT(x, z)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        by_z, by_x = SQUASHED_GRADIENT(grad, *ctx.saved_tensors)
        return by_x, by_z.sum((3, 4), keepdim=True)


def squashed(x: Tensor, z: Tensor) -> Tensor:
    """x [B, n*C, H, W] times tanh(z / 2), by z [n, B, C]."""
    if x.device.type == "cpu":
        return affine(x, torch.tanh(0.5 * z).transpose(0, 1).reshape(len(x), -1))
    n, by_image = len(z), z.transpose(0, 1)[..., None, None]
    return _joined(_Squashed.apply(_apart(x, n), by_image))  # type: ignore[no-untyped-call]


def _by_network(gain: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
    """Gains, and the maps, so that they broadcast: [n, 1, 1, 1] with views [B, n, C, H, W].

    On a CPU, which is slow where the innermost loop is short, [n*C, 1, 1] with the maps as they are.
    """
    if gain.device.type == "cpu":
        return per_channel(gain, maps[0].shape[1] // len(gain))[:, None, None], *maps
    return gain.view(-1, 1, 1, 1), *(_apart(x, len(gain)) for x in maps)


def _apart(x: Tensor, n: int) -> Tensor:
    """[B, n, C, H, W], a view."""
    return x.view(len(x), n, -1, *x.shape[2:])


def _joined(x: Tensor) -> Tensor:
    """[B, n*C, H, W], where networks were apart."""
    return x.flatten(1, 2) if x.dim() == 5 else x


def _network_sums(x: Tensor, n: int) -> Tensor:
    """Sums over each network's numbers: [n]."""
    if x.dim() == 5:
        return x.sum((0, 2, 3, 4))
    return channel_sums(x, 1).view(n, -1).sum(1)
