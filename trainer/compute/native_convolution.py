"""Convolutions side by side by a kernel of our own, compiled when the package is installed; CPUs, float32.

What a network's convolution computes is bit for bit the same beside any number of others, by AVX2 and AVX-512
and on any thread. Without a compiler at the installation, or on another processor, the kernel is absent and
`absence` says why.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .torch_private import below_autograd, define_operator

kernel: ModuleType | None
try:
    from . import _native_convolution as kernel
except ImportError:  # installed where there was no compiler
    kernel = None

KERNEL_SIZES = (1, 3)
MAX_NUMBERS = 2**31 - 1
"""Of a tensor; the kernel counts images and pixels in 32 bits."""


def instruction_set() -> str:
    """`avx512` or `avx2`; empty where the kernel is absent or this processor has neither."""
    return next(iter(kernel.instruction_sets()), "") if kernel is not None else ""


def absence() -> str:
    """Why convolutions cannot be native here; empty where they can."""
    if kernel is None:
        return "the kernel was not compiled: install a C++ compiler, then this package again"
    return "" if instruction_set() else "this processor has neither AVX2 nor AVX-512"


def is_taken(x: Tensor, weight: Tensor, groups: int, stride: int) -> bool:
    """Whether `convolve` computes this; decided by types and shapes of one network, never by how many."""
    n, outputs, inputs, _, size = weight.shape
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and size in KERNEL_SIZES
        and stride == 1
        and (groups == 1 or (groups == outputs and inputs == 1 and x.shape[1] == n * groups))
        and not torch.is_autocast_enabled("cpu")
        and 0 < x.numel() * max(1, outputs // inputs) <= MAX_NUMBERS
        and bool(instruction_set())
    )


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, *, relu: bool = False
) -> Tensor:
    """`stacked_ops.conv` of what `is_taken`, with a ReLU behind it where asked for.

    Where gradients are recorded there is neither a bias nor a ReLU.
    """
    out: Tensor = torch.ops.esper.convolve(x, weight, bias, groups, relu)
    return out


def _sizes(x: Tensor, weight: Tensor, groups: int) -> tuple[Any, ...]:
    """What both functions of the kernel are told of shapes: from `batch` to `depthwise`."""
    n, outputs, inputs, _, size = weight.shape
    batch, channels, height, width = x.shape
    shared = groups == 1 and n > 1 and channels == inputs
    depthwise = groups > 1
    inputs = outputs if depthwise else inputs
    return batch, height, width, n, inputs, outputs, size, weight.stride(0), shared, depthwise


def _rows(weight: Tensor) -> Tensor:
    """Weights with each network's in one piece, wherever the next one's begin."""
    return weight if weight[0].is_contiguous() else weight.contiguous()


def _empty(like: Tensor, channels: int) -> Tensor:
    batch, _, height, width = like.shape
    return torch.empty((batch, channels, height, width), dtype=like.dtype, memory_format=torch.channels_last)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, relu: bool) -> Tensor:
    assert kernel is not None
    x, weight = x.contiguous(memory_format=torch.channels_last), _rows(weight)
    bias = None if bias is None else bias.contiguous()
    out = _empty(x, weight.shape[0] * weight.shape[1])
    of_bias = 0 if bias is None else bias.data_ptr()
    pointers = (x.data_ptr(), weight.data_ptr(), of_bias, out.data_ptr())
    kernel.convolve(instruction_set(), *pointers, *_sizes(x, weight, groups), relu)
    return out


def _convolve_backward(
    grad: Tensor, x: Tensor, weight: Tensor, groups: int, to_x: bool, to_weight: bool
) -> tuple[Tensor, Tensor]:
    assert kernel is not None
    x, grad = (t.contiguous(memory_format=torch.channels_last) for t in (x, grad))
    weight = _rows(weight)
    of_x = _empty(x, x.shape[1]) if to_x else x.new_empty(0)
    of_weight = weight.new_empty(weight.shape if to_weight else 0)
    pointers = (t.data_ptr() for t in (x, weight, grad, of_x, of_weight))
    kernel.derive(instruction_set(), *pointers, *_sizes(x, weight, groups))
    return of_x, of_weight


def _fake_convolve(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    out = x.new_empty(x.shape[0], weight.shape[0] * weight.shape[1], *x.shape[2:])
    return out.contiguous(memory_format=torch.channels_last)


def _fake_convolve_backward(
    _grad: Tensor, x: Tensor, weight: Tensor, _groups: int, to_x: bool, to_weight: bool
) -> tuple[Tensor, Tensor]:
    of_x = torch.empty_like(x, memory_format=torch.channels_last) if to_x else x.new_empty(0)
    return of_x, weight.new_empty(weight.shape if to_weight else 0)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        with below_autograd():
            return convolve(x, weight, None, groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_x, to_weight = ctx.needs_input_grad[:2]
        of_x, of_weight = torch.ops.esper.convolve_backward(
            grad, *ctx.saved_tensors, ctx.groups, to_x, to_weight
        )
        return of_x if to_x else None, of_weight if to_weight else None, None


def _recorded_convolve(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, relu: bool) -> Tensor:
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        assert bias is None
        assert not relu
        out: Tensor = _Convolve.apply(x, weight, groups)  # type: ignore[no-untyped-call]
        return out
    with below_autograd():
        return convolve(x, weight, bias, groups, relu=relu)


define_operator(
    "convolve(Tensor x, Tensor weight, Tensor? bias, int groups, bool relu) -> Tensor",
    on_cpu=_convolve,
    fake=_fake_convolve,
    recorded=_recorded_convolve,
)
define_operator(
    "convolve_backward(Tensor grad, Tensor x, Tensor weight, int groups, bool to_x, bool to_weight)"
    " -> (Tensor, Tensor)",
    on_cpu=_convolve_backward,
    fake=_fake_convolve_backward,
)
