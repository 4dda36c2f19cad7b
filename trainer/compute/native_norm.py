"""The seeds' norm without a convolution by the kernel of our own; see `native_convolution`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import native_convolution as native
from .native_convolution import GROUP_NORM, addresses_of, in_rows, laid_out
from .operators import define_operator
from .torch_private import below_autograd


def is_taken(x: Tensor) -> bool:
    """True if the kernel computes this; the type and the size of the map decide."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and x.numel() > 0
        and bool(native.instruction_set())
    )


def towards_group_norm(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    """`stacked_ops.towards_group_norm` of what `is_taken`."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias, gain)):
        out: Tensor = _TowardsNorm.apply(x, weight, bias, gain)  # type: ignore[no-untyped-call]
        return out
    return torch.ops.esper.towards_norm(x, weight, bias, gain)[0]  # type: ignore[no-any-return]


def _sizes(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> tuple[int, ...]:
    n, channels = weight.shape
    batch, _, height, width = x.shape
    steps = weight.stride(0), bias.stride(0), gain.stride(0)
    return (batch, height, width, n, channels, channels, 0, 0, *steps, 0, 0, False, False, False, GROUP_NORM)


def _towards_norm(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert native.kernel is not None
    x, weight, bias = laid_out(x), in_rows(weight), in_rows(bias)
    y = torch.empty_like(x)
    mean, variance = (x.new_empty(_statistics_shape(x, weight)) for _ in range(2))
    addresses = addresses_of(raw=x, scale=weight, shift=bias, gain=gain, mean=mean, variance=variance, y=y)
    native.kernel.approach_norm(native.instruction_set(), addresses, _sizes(x, weight, bias, gain))
    return y, mean, variance


def _towards_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    gain: Tensor,
    mean: Tensor,
    variance: Tensor,
    to_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert native.kernel is not None
    x, grad, weight, bias = laid_out(x), laid_out(grad), in_rows(weight), in_rows(bias)
    of_x = torch.empty_like(x) if to_x else x.new_empty(0)
    of_weight, of_bias, of_gain = (t.new_empty(t.shape) for t in (weight, bias, gain))
    addresses = addresses_of(
        raw=x,
        grad=grad,
        scale=weight,
        shift=bias,
        gain=gain,
        mean=mean,
        variance=variance,
        to_x=of_x if to_x else None,
        to_scale=of_weight,
        to_shift=of_bias,
        to_gain=of_gain,
    )
    native.kernel.derive_approach(native.instruction_set(), addresses, _sizes(x, weight, bias, gain))
    return of_x, of_weight, of_bias, of_gain


def _statistics_shape(x: Tensor, weight: Tensor) -> tuple[int, int]:
    return x.shape[0], native.norm_groups(*weight.shape)


def _fake_towards_norm(x: Tensor, weight: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = (x.new_empty(_statistics_shape(x, weight)) for _ in range(2))
    return torch.empty_like(x, memory_format=torch.channels_last), mean, variance


def _fake_towards_norm_backward(
    _grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_x = torch.empty_like(x, memory_format=torch.channels_last) if rest[-1] else x.new_empty(0)
    of_weight, of_bias, of_gain = (t.new_empty(t.shape) for t in (weight, bias, gain))
    return of_x, of_weight, of_bias, of_gain


class _TowardsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        with below_autograd():
            y, *found = torch.ops.esper.towards_norm(x, weight, bias, gain)
        ctx.save_for_backward(x, weight, bias, gain, *found)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_x = ctx.needs_input_grad[0]
        of_x, *others = torch.ops.esper.towards_norm_backward(grad, *ctx.saved_tensors, to_x)
        return of_x if to_x else None, *others


define_operator(
    "towards_norm(Tensor x, Tensor weight, Tensor bias, Tensor gain) -> (Tensor, Tensor, Tensor)",
    on_cpu=_towards_norm,
    fake=_fake_towards_norm,
)
define_operator(
    "towards_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor gain, Tensor mean,"
    " Tensor variance, bool to_x) -> (Tensor, Tensor, Tensor, Tensor)",
    on_cpu=_towards_norm_backward,
    fake=_fake_towards_norm_backward,
)
