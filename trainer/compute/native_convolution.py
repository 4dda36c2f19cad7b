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

from .operators import define_operator
from .torch_private import below_autograd

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
    out: Tensor = torch.ops.esper.convolve(x, weight, bias, groups, relu, pool)
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
    tensors = (x, weight, scale, shift)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        out: Tensor = _ConvolveNormed.apply(*tensors, pool)  # type: ignore[no-untyped-call]
        return out, out, out
    made, _, mean, variance, _, _ = torch.ops.esper.convolve_normed(*tensors, pool, False)
    return made, mean, variance


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
    one = values[0] if values.dim() > 1 else values  # [n*O] has all networks' in one piece
    return values if one.is_contiguous() else values.contiguous()


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


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, relu: bool, pool: bool) -> Tensor:
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
    grad: Tensor, x: Tensor, weight: Tensor, groups: int, to_x: bool, to_weight: bool
) -> tuple[Tensor, Tensor]:
    assert kernel is not None
    x, grad, weight = laid_out(x), laid_out(grad), in_rows(weight)
    of_x = _empty(x, x.shape[1]) if to_x else x.new_empty(0)
    of_weight = weight.new_empty(weight.shape if to_weight else 0)
    addresses = addresses_of(
        x=x,
        weight=weight,
        grad=grad,
        to_x=of_x if to_x else None,
        to_weight=of_weight if to_weight else None,
    )
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
    pool: bool,
    keep: bool,
) -> tuple[Tensor, ...]:
    """y, what the norm is given, mean, variance, the pooled x and its places; nothing where none are kept."""
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
    if places is None:
        raw = raw if keep else x.new_empty(0)
        return y, raw, mean, variance, x.new_empty(0), x.new_empty(0)
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
    places: Tensor,
    height: int,
    width: int,
    to_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (before its pool where it has places: `height` and `width`), weight and norm."""
    assert kernel is not None
    assert not (to_x and _is_shared(x, weight)), "as in _convolve_backward"
    x, grad, weight, scale, shift = (
        laid_out(x),
        laid_out(grad),
        in_rows(weight),
        in_rows(scale),
        in_rows(shift),
    )
    of_x = _empty(x, x.shape[1]) if to_x else x.new_empty(0)
    of_large = None
    if to_x and places.numel():
        size = (*x.shape[:2], height, width)
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
        to_x=of_x if to_x else None,
        to_weight=of_weight,
        to_scale=of_scale,
        to_shift=of_shift,
        to_large=of_large,
        places=places,
    )
    sizes = _norm_sizes(x, weight, scale, shift, of_large)
    kernel.derive(instruction_set(), addresses, sizes)
    return of_x if of_large is None else of_large, of_weight, of_scale, of_shift


def _fake_convolve(x: Tensor, weight: Tensor, *how: Any) -> Tensor:
    height, width = (side // 2 for side in x.shape[2:]) if how[-1] else x.shape[2:]
    return laid_out(x.new_empty(x.shape[0], weight.shape[0] * weight.shape[1], height, width))


def _fake_convolve_backward(
    _grad: Tensor, x: Tensor, weight: Tensor, _groups: int, to_x: bool, to_weight: bool
) -> tuple[Tensor, Tensor]:
    of_x = torch.empty_like(x, memory_format=torch.channels_last) if to_x else x.new_empty(0)
    return of_x, weight.new_empty(weight.shape if to_weight else 0)


def _fake_convolve_normed(
    x: Tensor, weight: Tensor, _scale: Tensor, _shift: Tensor, pool: bool, keep: bool
) -> tuple[Tensor, ...]:
    y = _fake_convolve(x, weight, pool)
    size = weight.shape[0] * weight.shape[1]
    raw = torch.empty_like(y) if keep else x.new_empty(0)
    found = y, raw, x.new_empty(size), x.new_empty(size)
    if not pool or not keep:
        return *found, x.new_empty(0), x.new_empty(0)
    pooled = laid_out(x.new_empty(*x.shape[:2], *y.shape[2:]))
    return *found, pooled, torch.empty_like(pooled, dtype=torch.uint8)


def _fake_convolve_normed_backward(
    _grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, places, height, width, to_x = rest
    size = (*x.shape[:2], height, width) if places.numel() else x.shape
    of_x = laid_out(x.new_empty(size)) if to_x else x.new_empty(0)
    return of_x, torch.empty_like(weight), torch.empty_like(scale), torch.empty_like(shift)


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


class _ConvolveNormed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, pool: bool) -> Tensor:
        with below_autograd():
            y, *found, pooled, places = torch.ops.esper.convolve_normed(x, weight, scale, shift, pool, True)
        ctx.save_for_backward(pooled if pool else x, weight, scale, shift, *found, places)
        ctx.size = x.shape[2:]
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_x = ctx.needs_input_grad[0]
        of_x, *others = torch.ops.esper.convolve_normed_backward(grad, *ctx.saved_tensors, *ctx.size, to_x)
        return of_x if to_x else None, *others, None


def _recorded_convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, relu: bool, pool: bool
) -> Tensor:
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        assert bias is None
        assert not relu
        assert not pool
        out: Tensor = _Convolve.apply(x, weight, groups)  # type: ignore[no-untyped-call]
        return out
    with below_autograd():
        return convolve(x, weight, bias, groups, relu=relu, pool=pool)


define_operator(
    "convolve(Tensor x, Tensor weight, Tensor? bias, int groups, bool relu, bool pool) -> Tensor",
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
define_operator(
    "convolve_normed(Tensor x, Tensor weight, Tensor scale, Tensor shift, bool pool, bool keep)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    on_cpu=_convolve_normed,
    fake=_fake_convolve_normed,
)
define_operator(
    "convolve_normed_backward(Tensor grad, Tensor x, Tensor weight, Tensor scale, Tensor shift, Tensor raw,"
    " Tensor mean, Tensor variance, Tensor places, int height, int width, bool to_x)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    on_cpu=_convolve_normed_backward,
    fake=_fake_convolve_normed_backward,
)
