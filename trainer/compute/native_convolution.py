"""Convolutions side by side by a kernel of our own, compiled when the package is installed; CPUs, float32.

What a network's convolution computes is bit for bit the same beside any number of others, by AVX2 and AVX-512
and on any thread. Without a compiler at the installation, or on another processor, the kernel is absent and
`absence` says why.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

kernel: ModuleType | None
try:
    from . import _native_convolution as kernel
except ImportError:  # installed where there was no compiler
    kernel = None

INTERFACE = 6
"""Version of the kernel that this module calls; one compiled before its sources changed has another."""
KERNEL_SIZES = (1, 3)
MAX_PIXELS = 2**31 - 1
"""Pixels of a batch; the kernel counts them in 32 bits."""
NO_NORM, BATCH_NORM = range(2)
"""Codes of the kernel for the norm behind a convolution."""
NORMED_GRADIENT = "_ConvolveNormedBackward"
"""Autograd's name for the gradient of `convolve_normed`, which does not need its result."""


def _is_outdated(module: ModuleType) -> bool:
    return getattr(module, "INTERFACE", 0) != INTERFACE


@cache
def _best_set(module: ModuleType) -> str:
    return next(iter(module.instruction_sets()), "")


def instruction_set() -> str:
    """`avx512` or `avx2`; empty where the kernel is absent or this processor has neither."""
    return "" if kernel is None or _is_outdated(kernel) else _best_set(kernel)


def absence() -> str:
    """Why convolutions cannot be native here; empty where they can."""
    if kernel is None:
        return "the kernel was not compiled: install a C++ compiler, then this package again"
    if _is_outdated(kernel):
        return "the kernel was compiled from older sources: install this package again"
    return "" if instruction_set() else "this processor has neither AVX2 nor AVX-512"


def is_taken(x: Tensor, weight: Tensor, groups: int = 1, stride: int = 1, *, pool: bool = False) -> bool:
    """True if the kernel computes this; types and shapes of one network decide, never the number of networks.

    One exception: an input that several networks share and whose gradient is wanted is not taken, since the
    kernel does not add up the networks' parts of it.
    """
    n, outputs, inputs, _, size = weight.shape
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and size in KERNEL_SIZES
        and stride == 1
        and (groups == 1 or (groups == outputs and inputs == 1 and x.shape[1] == n * groups))
        and not torch.is_autocast_enabled("cpu")
        and 0 < x.shape[0] * x.shape[2] * x.shape[3] <= MAX_PIXELS
        and not (pool and min(x.shape[2:]) < 2)
        and not (x.requires_grad and groups == 1 < n and x.shape[1] == inputs and torch.is_grad_enabled())
        and bool(instruction_set())
    )


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    *,
    relu: bool = False,
    pool: bool = False,
) -> Tensor:
    """`stacked_ops.conv` of what `is_taken`; with a ReLU behind it, a max pool before it, where asked for.

    Where gradients are recorded there is neither a bias nor a ReLU nor a pool.
    """
    if not _is_recorded(x, weight):
        return _convolve(x, weight, bias, groups, relu=relu, pool=pool)
    assert bias is None
    assert not relu
    assert not pool
    out: Tensor = _Convolve.apply(x, weight, groups)  # type: ignore[no-untyped-call]
    return out


def convolve_normed(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    pool: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """relu(batch norm(convolution)) of what `is_taken`.

    Args:
        scale, shift: [n, O] or [n*O].
        pool: whether x is halved by a max pool first, as by `stacked_ops.max_pool`.

    Returns:
        [B, n*O, H, W] (of the halved map where there is a pool), and where no gradients are recorded the
        mean and the biased variance that the norm took, [n*O].
    """
    if _is_recorded(x, weight, scale, shift):
        out: Tensor = _ConvolveNormed.apply(x, weight, scale, shift, pool)  # type: ignore[no-untyped-call]
        return out, out, out
    made, _, mean, variance, _, _ = _convolve_normed(x, weight, scale, shift, pool=pool, keep=False)
    return made, mean, variance


def _is_recorded(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _sizes(x: Tensor, weight: Tensor, groups: int = 1) -> tuple[int, ...]:
    """Shape arguments of the kernel, without norms: up to `weight_step`."""
    n, outputs, inputs, _, size = weight.shape
    batch, _, height, width = x.shape
    return batch, height, width, n, outputs if groups > 1 else inputs, outputs, size, weight.stride(0)


def _is_shared(x: Tensor, weight: Tensor, groups: int = 1) -> bool:
    n, _, inputs, _, _ = weight.shape
    return groups == 1 and n > 1 and x.shape[1] == inputs


def in_rows(values: Tensor) -> Tensor:
    """A tensor [n, ...] with each network's numbers in one piece, wherever the next one's begin."""
    is_in_rows = values.is_contiguous() or (values.dim() > 1 and values[0].is_contiguous())
    return values if is_in_rows else values.contiguous()


def laid_out(x: Tensor) -> Tensor:
    """A map in the memory order of the kernel."""
    return x.contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, channels: int) -> Tensor:
    batch, _, height, width = like.shape
    return torch.empty((batch, channels, height, width), dtype=like.dtype, memory_format=torch.channels_last)


def _empty_pooled(x: Tensor, dtype: torch.dtype) -> Tensor:
    batch, channels, height, width = x.shape
    assert min(height, width) > 1, "nothing is left; is_taken refuses it"
    size = (batch, channels, height // 2, width // 2)
    return torch.empty(size, dtype=dtype, memory_format=torch.channels_last)


_PLACES = {
    name: place
    for place, name in enumerate(
        (
            *("x", "weight", "bias", "scale", "shift", "gain", "skip", "grad", "raw", "mean", "variance"),
            *("y", "to_x", "to_weight", "to_scale", "to_shift", "to_gain", "large", "to_large", "places"),
        )
    )
}
"""The order of `Tensors` in the kernel's source."""


def addresses_of(**tensors: Tensor | None) -> tuple[int, ...]:
    """Addresses of a call's tensors, in that order; 0 for those that are not given."""
    addresses = [0] * len(_PLACES)
    for name, tensor in tensors.items():
        if tensor is not None:
            addresses[_PLACES[name]] = tensor.data_ptr()
    return tuple(addresses)


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, *, relu: bool = False, pool: bool = False
) -> Tensor:
    assert kernel is not None
    x, weight = laid_out(x), in_rows(weight)
    large = x if pool else None
    x = _empty_pooled(x, x.dtype) if pool else x
    bias = None if bias is None else bias.contiguous()
    y = _empty(x, weight.shape[0] * weight.shape[1])
    flags = (0, 0, 0, *_large_sizes(large), _is_shared(x, weight, groups), groups > 1, relu, NO_NORM)
    addresses = addresses_of(x=x, weight=weight, bias=bias, y=y, large=large)
    kernel.convolve(instruction_set(), addresses, (*_sizes(x, weight, groups), *flags))
    return y


def _convolve_backward(
    grad: Tensor, x: Tensor, weight: Tensor, groups: int, *, to_x: bool, to_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    assert kernel is not None
    x, grad, weight = laid_out(x), laid_out(grad), in_rows(weight)
    of_x = _empty(x, x.shape[1]) if to_x else None
    of_weight = weight.new_empty(weight.shape) if to_weight else None
    addresses = addresses_of(x=x, weight=weight, grad=grad, to_x=of_x, to_weight=of_weight)
    is_shared = _is_shared(x, weight, groups)
    assert not (to_x and is_shared), "only the last network's part would be found; is_taken refuses it"
    flags = (0, 0, 0, 0, 0, is_shared, groups > 1, False, NO_NORM)
    kernel.derive(instruction_set(), addresses, (*_sizes(x, weight, groups), *flags))
    return of_x, of_weight


def _large_sizes(large: Tensor | None) -> tuple[int, ...]:
    """H and W before a max pool; 0 without one."""
    return (0, 0) if large is None else tuple(large.shape[2:])


def _norm_sizes(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    large: Tensor | None,
) -> tuple[int, ...]:
    outputs = weight.shape[1]
    steps = (t.stride(0) if t.dim() == 2 else outputs for t in (scale, shift))
    sizes = (*_sizes(x, weight), *steps, 0, *_large_sizes(large))
    return (*sizes, _is_shared(x, weight), False, False, BATCH_NORM)


def _convolve_normed(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    pool: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """y, what the norm is given, mean, variance, x behind its pool, the pool's places if they are kept."""
    assert kernel is not None
    x, weight, scale, shift = laid_out(x), in_rows(weight), in_rows(scale), in_rows(shift)
    large = x if pool else None
    x = _empty_pooled(x, x.dtype) if pool else x
    places = _empty_pooled(large, torch.uint8) if large is not None and keep else None
    n, outputs = weight.shape[:2]
    y = _empty(x, n * outputs)
    raw = torch.empty_like(y) if keep else y
    mean, variance = x.new_empty(n * outputs), x.new_empty(n * outputs)
    addresses = addresses_of(
        x=x,
        weight=weight,
        scale=scale,
        shift=shift,
        raw=raw,
        mean=mean,
        variance=variance,
        y=y,
        large=large,
        places=places,
    )
    sizes = _norm_sizes(x, weight, scale, shift, large)
    kernel.convolve(instruction_set(), addresses, sizes)
    return y, raw, mean, variance, x, places


def _convolve_normed_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    raw: Tensor,
    mean: Tensor,
    variance: Tensor,
    places: Tensor | None,
    *,
    size: torch.Size,
    to_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients of x (before its pool where it has places, of that size), weight and norm."""
    assert kernel is not None
    assert not (to_x and _is_shared(x, weight)), "as in _convolve_backward"
    x, grad, weight, scale, shift = (
        laid_out(x),
        laid_out(grad),
        in_rows(weight),
        in_rows(scale),
        in_rows(shift),
    )
    of_x = _empty(x, x.shape[1]) if to_x else None
    of_large = None
    if to_x and places is not None:
        of_large = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    of_weight, of_scale, of_shift = (t.new_empty(t.shape) for t in (weight, scale, shift))
    addresses = addresses_of(
        x=x,
        weight=weight,
        scale=scale,
        shift=shift,
        grad=grad,
        raw=raw,
        mean=mean,
        variance=variance,
        to_x=of_x,
        to_weight=of_weight,
        to_scale=of_scale,
        to_shift=of_shift,
        to_large=of_large,
        places=places,
    )
    sizes = _norm_sizes(x, weight, scale, shift, of_large)
    kernel.derive(instruction_set(), addresses, sizes)
    return of_x if of_large is None else of_large, of_weight, of_scale, of_shift


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        return _convolve(x, weight, None, groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, _ = ctx.needs_input_grad
        return *_convolve_backward(grad, x, weight, ctx.groups, to_x=to_x, to_weight=to_weight), None


class _ConvolveNormed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, pool: bool) -> Tensor:
        y, *found, seen, places = _convolve_normed(x, weight, scale, shift, pool=pool, keep=True)
        ctx.save_for_backward(seen, weight, scale, shift, *found, places)
        ctx.size = x.shape
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_x = ctx.needs_input_grad[0]
        return *_convolve_normed_backward(grad, *ctx.saved_tensors, size=ctx.size, to_x=to_x), None
