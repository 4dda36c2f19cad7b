"""Operations on n small networks side by side.

Activations of n networks are one tensor [B, n*C, H, W] in channels_last memory (that is, [B, H, W, n, C]),
their parameters one tensor [n, ...]. A grouped convolution, a batch norm over n*C channels and a group norm
with n times the groups are then exactly n separate ones.

On a CPU they are more: from two networks on, what one of them computes is bit for bit the same, whatever the
others hold. Sums over a map therefore go through `map_mean` there, whose order of additions does not depend
on n as that of torch's own reductions does; on a GPU those are one kernel. How many the others are may show
in a last bit: a matrix product rounds by where its operands lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import rng
from .device import upload
from .pointwise import FusedFormula

Parameters = dict[str, Tensor]
"""Stacked tensors [n, ...] by name."""


@dataclass(frozen=True)
class Init:
    """Shape of one network's tensor and how it begins.

    With a `fan_in` it is uniform in ±1/sqrt(fan_in) (LeCun et al., "Efficient backprop", 1998; also
    torch.nn's default for convolutions and linear layers), else it is filled with `fill`.
    """

    shape: tuple[int, ...] = ()
    fan_in: int = 0
    fill: float = 0.0

    @property
    def count(self) -> int:
        """Numbers in it, for one network."""
        return torch.Size(self.shape).numel()


def initialise(specs: dict[str, Init], keys: Tensor, dtype: torch.dtype) -> Parameters:
    """Fresh tensors [n, *shape] for n networks, each a function of its own key (int64 [n])."""
    out: Parameters = {}
    for position, (name, spec) in enumerate(specs.items()):
        shape = (keys.shape[0], *spec.shape)
        if spec.fan_in:
            unit = rng.uniform(rng.fold(keys, position), spec.count, dtype)
            out[name] = ((2.0 * unit - 1.0) * spec.fan_in**-0.5).view(shape)
        else:
            out[name] = torch.full(shape, spec.fill, dtype=dtype, device=keys.device)
    return out


@dataclass(frozen=True)
class DrawTable:
    """Draws tensors of several modules together, number for number as `initialise` does."""

    key: Tensor
    """int64 [T], which of a network's keys each tensor is drawn from."""
    place: Tensor
    """int64 [T], its place among the tensors of that key."""
    tensor: Tensor
    """int64 [P], the tensor of each number."""
    position: Tensor
    """int64 [P], where in its tensor each number is."""
    scale: Tensor
    """[P]: uniform in ±scale around `fill`."""
    fill: Tensor

    @classmethod
    def of(cls, modules: Sequence[tuple[int, Sequence[Init]]], like: Tensor) -> DrawTable:
        """The draws of modules that each have the number of a key; device and dtype are those of `like`."""
        tensors = [(key, place, spec) for key, specs in modules for place, spec in enumerate(specs)]
        counts = [spec.count for *_, spec in tensors]
        scale = [spec.fan_in**-0.5 if spec.fan_in else 0.0 for *_, spec in tensors]
        fill = [0.0 if spec.fan_in else spec.fill for *_, spec in tensors]
        return cls(
            key=torch.tensor([key for key, *_ in tensors], device=like.device),
            place=torch.tensor([place for _, place, _ in tensors], device=like.device),
            tensor=upload(np.repeat(np.arange(len(tensors)), counts), like.device),
            position=upload(np.concatenate([np.arange(count) for count in counts]), like.device),
            scale=upload(np.repeat(scale, counts), like.device).to(like.dtype),
            fill=upload(np.repeat(fill, counts), like.device).to(like.dtype),
        )

    def draw(self, keys: Tensor) -> Tensor:
        """Numbers [n, P] of n networks from their keys, int64 [n, K]."""
        of_tensors = rng.fold(keys.index_select(1, self.key), self.place)
        words = rng.bits_at(of_tensors.index_select(1, self.tensor), self.position)
        return torch.addcmul(self.fill, 2.0 * rng.to_uniform(words, self.scale.dtype) - 1.0, self.scale)


def to_rows(x: Tensor, n: int) -> Tensor:
    """[B, n*C, H, W] seen as [B, H, W, n, C]."""
    batch, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).view(batch, height, width, n, channels // n)


def to_channels(x: Tensor) -> Tensor:
    """[B, H, W, n, C] seen as [B, n*C, H, W] in channels_last memory."""
    return x.flatten(3).permute(0, 3, 1, 2)


def expand_rows(values: Tensor, like: Tensor) -> Tensor:
    """One value for each of n rows, [n], seen as [n, 1, ...], so that it goes with `like` [n, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def max_pool(x: Tensor) -> Tensor:
    """The largest of each 2x2 pixels: [B, C, H/2, W/2], odd edges left out.

    Where no gradient is recorded its place is not needed, which saves a third of torch's own time.
    """
    if torch.is_grad_enabled():
        return F.max_pool2d(x, 2)
    height, width = x.shape[2:]
    pixels = x[:, :, : height // 2 * 2, : width // 2 * 2].permute(0, 2, 3, 1)
    if x.device.type != "cpu":
        squares = pixels.view(len(x), height // 2, 2, width // 2, 2, -1)
        return squares.amax((2, 4)).permute(0, 3, 1, 2)
    rows = torch.maximum(pixels[:, 0::2], pixels[:, 1::2])
    return torch.maximum(rows[:, :, 0::2], rows[:, :, 1::2]).permute(0, 3, 1, 2)


def per_channel(values: Tensor, channels: int) -> Tensor:
    """A number of each network, [n], for each of its channels: [n*C]."""
    return values.unsqueeze(1).expand(-1, channels).reshape(-1)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    stride: int = 1,
    *,
    unfold: bool = False,
) -> Tensor:
    """n convolutions that keep the size of the map, or with a stride divide it, rounded up.

    Args:
        x: [B, n*I, H, W], or [B, I, H, W] where all n see the same.
        weight: [n, O, I/groups, k, k] with odd k.
        bias: [n, O].
        groups: of each of the n convolutions.
        stride: distance of the pixels that the kernel is put on.
        unfold: gather the pixels under the kernel and multiply matrices, instead of one grouped convolution:
            cuDNN's can be slower than that.

    Returns:
        [B, n*O, H/stride, W/stride].
    """
    n, _, inputs, _, kernel = weight.shape
    if kernel == 1 and stride > 1:
        x, stride = x[:, :, ::stride, ::stride].contiguous(memory_format=torch.channels_last), 1
    shared = x.shape[1] == inputs * groups and groups == 1
    flat = None if bias is None else bias.flatten()
    if kernel == 1 and groups == 1 and not shared and _small(x):
        out: Tensor = _Pointwise.apply(x, weight)  # type: ignore[no-untyped-call]
        return out if flat is None else out + flat[:, None, None]
    if unfold and not shared:
        out = _conv_by_products(x, weight.reshape(n * groups, -1, *weight.shape[2:]), stride)
        return out if flat is None else out + flat[:, None, None]
    together = 1 if shared else n * groups
    return F.conv2d(x, weight.flatten(0, 1), flat, stride, padding=kernel // 2, groups=together)


PRODUCTS = FusedFormula(
    "template <typename T> void products(T g, T a, T b, T& by_a, T& by_b) { by_a = g * a; by_b = g * b; }",
    2,
    lambda g, a, b: (g * a, g * b),
)
"""g * a and g * b."""
MAX_POINTWISE_PIXELS = 4096
"""Maps of at most this many pixels in a batch: 1x1 convolutions are cheaper on a CPU as small matrix
products."""


def _small(x: Tensor) -> bool:
    """True for a 1x1 convolution of few pixels; does not depend on how many networks there are.

    torch.compile does not trace what is written into a view.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == "cpu" and x.shape[0] * x.shape[2] * x.shape[3] <= MAX_POINTWISE_PIXELS


class _Pointwise(torch.autograd.Function):
    """1x1 convolutions of x [B, n*I, H, W] by weight [n, O, I, 1, 1]; each written where it belongs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _products(x, weight.squeeze((3, 4)).mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        to_x = _products(grad, weight.squeeze((3, 4))) if ctx.needs_input_grad[0] else None
        n = weight.shape[0]
        to_weight = torch.bmm(_matrices(grad, n).mT, _matrices(x, n))
        return to_x, to_weight.view(weight.shape)


def _products(x: Tensor, factor: Tensor) -> Tensor:
    """[B, n*O, H, W] from x [B, n*I, H, W] and factor [n, I, O]."""
    n, _, outputs = factor.shape
    batch, _, height, width = x.shape
    out = torch.empty(
        (batch, n * outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    torch.bmm(_matrices(x, n), factor, out=_matrices(out, n))
    return out


def _matrices(x: Tensor, n: int) -> Tensor:
    """`to_matrices` as one view, where nothing records gradients."""
    batch, channels, height, width = x.shape
    x = x.contiguous(memory_format=torch.channels_last)
    each = channels // n
    return x.as_strided((n, batch * height * width, each), (each, channels, 1))


def _conv_by_products(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """m convolutions of x [B, m*I, H, W] with weight [m, O, I, k, k] as one batch of matrix products."""
    m, outputs, inputs, _, kernel = weight.shape
    batch, _, *size = x.shape
    height, width = (-(-side // stride) for side in size)
    if kernel == 1:
        pixels = to_rows(x, m).permute(3, 0, 1, 2, 4)
    else:
        columns = F.unfold(x, kernel, padding=kernel // 2, stride=stride)
        pixels = columns.view(batch, m, inputs * kernel**2, -1).permute(1, 0, 3, 2)
    out = torch.bmm(pixels.reshape(m, batch * height * width, -1), weight.flatten(2).mT)
    return to_channels(out.view(m, batch, height, width, outputs).permute(1, 2, 3, 0, 4))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """n batch norms by the statistics of the batch: x [B, n*C, H, W], weight and bias [n, C] or [n*C]."""
    return F.batch_norm(x, None, None, weight.flatten(), bias.flatten(), training=True)


def batch_norm_average(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, batches: int
) -> Tensor:
    """`batch_norm` that also updates the averages [n, C] in place; the batch is number `batches`."""
    return F.batch_norm(
        x,
        mean.view(-1),
        variance.view(-1),
        weight.flatten(),
        bias.flatten(),
        training=True,
        momentum=1.0 / batches,
    )


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """n group norms with one group for every eight channels (at least one).

    torch 2.13 crashes in the backward of an affine group norm when the gradient of its channels_last input
    is not asked for; an input that requires none is scaled outside of it.

    Args:
        x: [B, n*C, H, W].
        weight: [n, C].
        bias: [n, C].
    """
    groups = norm_groups(*weight.shape)
    if torch.is_grad_enabled() and not x.requires_grad:
        return affine(F.group_norm(x, groups), weight.flatten(), bias.flatten())
    return F.group_norm(x, groups, weight.flatten(), bias.flatten())


def norm_groups(n: int, channels: int) -> int:
    """How many groups n networks have."""
    return n * (channels // 8 if channels % 8 == 0 else 1)


class _Pooled(torch.autograd.Function):
    """On a CPU the backward of torch's own goes pixel by pixel and takes ten times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:
        ctx.shape = x.shape
        return map_mean(x).view(x.shape[0], n, -1).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        batch, channels, height, width = ctx.shape
        by_image, room = grad.transpose(0, 1), None
        if not torch.compiler.is_compiling():  # which cannot write into given memory; one operation, not two
            room = torch.empty_like(by_image, memory_format=torch.contiguous_format)
        each = torch.div(by_image, height * width, out=room).reshape(batch, channels, 1, 1)
        if grad.device.type != "cpu":
            return each.expand(ctx.shape), None
        spread = torch.empty(ctx.shape, dtype=grad.dtype, memory_format=torch.channels_last)
        return spread.copy_(each), None


def map_mean(x: Tensor) -> Tensor:
    """Mean over the map: [B, n*C] from [B, n*C, H, W]; `pooled` has a gradient that is fast on a CPU."""
    return x.mean((2, 3)) if x.device.type != "cpu" else F.avg_pool2d(x, x.shape[2:]).flatten(1)


def pooled(x: Tensor, n: int) -> Tensor:
    """Mean over the map, by network: [n, B, C] from [B, n*C, H, W]."""
    out: Tensor = _Pooled.apply(x, n)  # type: ignore[no-untyped-call]
    return out


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, shift: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, factor)
        scaled = x * factor[..., None, None]
        return scaled if shift is None else scaled.add_(shift[..., None, None])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, factor = ctx.saved_tensors
        times_x, to_x = PRODUCTS(grad, x, factor[..., None, None])
        to_factor = channel_sums(times_x, factor.dim())
        return (
            to_x if ctx.needs_input_grad[0] else None,
            to_factor,
            channel_sums(grad, 1) if ctx.needs_input_grad[2] else None,
        )


def channel_sums(x: Tensor, dim: int) -> Tensor:
    """[B, C, H, W] summed over the map and, for a `dim` of 1, over the images: [B, C] or [C]."""
    if x.device.type != "cpu":
        return x.sum((0, 2, 3) if dim == 1 else (2, 3))
    sums = F.avg_pool2d(x, x.shape[2:], divisor_override=1).flatten(1)
    return sums.t().contiguous().sum(1) if dim == 1 else sums


def affine(x: Tensor, factor: Tensor, shift: Tensor | None = None) -> Tensor:
    """Channels of x [B, n*C, H, W] times a factor, plus a shift.

    Args:
        factor: [n*C], or [B, n*C] with one for each image.
        shift: [n*C].
    """
    out: Tensor = _Affine.apply(x, factor, shift)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x, weight, bias = (t.to(torch.get_autocast_dtype(kind)) for t in (x, weight, bias))
        ctx.save_for_backward(x, weight)
        ctx.shape = bias.shape
        return torch.baddbmm(bias.view(len(weight), 1, -1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        to_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        to_weight = torch.bmm(grad.mT, x)
        if grad.device.type != "cpu":
            return to_x, to_weight, grad.sum(1).view(ctx.shape)
        ones = grad.new_ones(1, 1, 1).expand(grad.shape[0], 1, grad.shape[1])
        return to_x, to_weight, torch.bmm(ones, grad).view(ctx.shape)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """n linear layers: x [n, B, I], weight [n, O, I], bias [n, O] or [n*O] -> [n, B, O].

    The gradient of the bias is summed by a matrix product too, see the module's docstring.
    """
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def to_matrices(x: Tensor, n: int) -> Tensor:
    """[B, n*C, H, W] seen as [n, B*H*W, C]."""
    return to_rows(x, n).flatten(0, 2).transpose(0, 1)


def from_matrices(h: Tensor, shape: torch.Size) -> Tensor:
    """[n, B*H*W, C] as [B, n*C, H, W] in channels_last memory.

    Args:
        shape: whose B, H and W they are.
    """
    batch, _, height, width = shape
    n, _, channels = h.shape
    return to_channels(h.transpose(0, 1).reshape(batch, height, width, n, channels))


def layer_norm(h: Tensor) -> Tensor:
    """Layer norm without parameters (Ba et al., 2016) over the last dimension."""
    return F.layer_norm(h, h.shape[-1:])


def causal_attention(h: Tensor, weight: Tensor, heads: int, context: int, window: int = 0) -> Tensor:
    """Self-attention of n networks, in which a position sees itself and those before it.

    Args:
        h: [n, B*T, C].
        weight: [n, 3*C, C], queries, keys and values.
        heads: that divide C.
        context: T.
        window: how many positions one sees, itself included; 0 = all before it.

    Returns:
        [n, B*T, C], the heads side by side.
    """
    n, rows, channels = h.shape
    qkv = (h @ weight.mT).view(n * rows // context, context, 3, heads, channels // heads)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    if window:
        place = torch.arange(context, device=h.device)
        distance = place.unsqueeze(1) - place
        seen = (distance >= 0) & (distance < window)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    else:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out.transpose(1, 2).reshape(n, rows, channels)
