"""The seeds of a slot by the kernel of `native_convolution`: one call each way; CPUs, float32.

What a seed computes is bit for bit the same beside any others. Maps are [B, n*C, H, W] in channels_last
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import native_convolution as native
from .native_convolution import laid_out

CONVOLUTION, DEPTHWISE, NORM, ATTENTION = range(4)
"""Codes of the kernel for kinds of layers."""
ISOLATED = 3
"""Its code for a seed that its host does not hear; the others are those of `Style`."""


class LayerPlaces(NamedTuple):
    """A layer of a kind of seeds: its shape, and where a seed's numbers hold its tensors, -1 = nowhere.

    A convolution with a `scale` and a `shift` has relu(group norm) behind it; with a `gain` the seed's input
    is added to so much of that. Attention has the squeeze's weight and bias, then the excitation's; `outputs`
    is how far it squeezes.
    """

    kind: int
    inputs: int
    outputs: int
    kernel: int = 0
    weight: int = -1
    scale: int = -1
    shift: int = -1
    gain: int = -1


@dataclass(frozen=True)
class SeedRows:
    """Seeds to be run in a slot."""

    table: Tensor
    """int64 [k, 4]: the row of the map, the row of the weights, which of the kinds, how it is blended."""
    alpha: Tensor
    """float32 [k]."""
    is_blended: bool
    """Whether any is heard by its host."""


@dataclass(frozen=True)
class SeedKinds:
    """The kinds of these."""

    layers: Sequence[Tensor]
    """int64 [L, 8] each, rows of `LayerPlaces`."""
    numbers: Sequence[Tensor]
    """float32 [owners, P] each, the seeds' weights; behind them the gates', if any, [owners, C + 1]."""

    def arguments(self, gradients: Sequence[Tensor] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers for the kernel: of the gates (address, gradient's, step), and of the kinds."""
        to = [0] * len(self.numbers) if gradients is None else [t.data_ptr() for t in gradients]
        kinds = [
            number
            for layers, numbers, gradient in zip(self.layers, self.numbers, to, strict=False)
            for number in (
                *(layers.data_ptr(), len(layers), numbers.data_ptr(), numbers.stride(0), gradient),
                numbers.shape[1],
            )
        ]
        if len(self.numbers) == len(self.layers):
            return (0, 0, 0), tuple(kinds)
        gate = self.numbers[-1]
        return (gate.data_ptr(), to[-1], gate.stride(0)), tuple(kinds)


def run_seeds(h: Tensor, n: int, rows: SeedRows, kinds: SeedKinds, *, keep: bool = True) -> Tensor:
    """Run seeds and blend them into their hosts, see `seeds.blend`; in place where nothing is recorded.

    Args:
        keep: leave `h`, and in the backward pass the gradient of what is returned, as they are. Without it
            they are changed in place where `h` is a normed convolution's, whose own gradient needs what came
            before the norm: to copy a map of 8 MB costs as much as a seed.
    """
    if torch.is_grad_enabled():
        keep = keep or h.grad_fn is None or h.grad_fn.name() != native.NORMED_GRADIENT
        out: Tensor = _RunSeeds.apply(h, n, rows, keep, kinds.layers, *kinds.numbers)  # type: ignore[no-untyped-call]
        return out
    h = laid_out(h)
    _call("run_seeds", h, n, rows, kinds, host=h)
    return h


def _call(
    name: str,
    like: Tensor,
    n: int,
    rows: SeedRows,
    kinds: SeedKinds,
    *,
    host: Tensor | None = None,
    grad: Tensor | None = None,
    to_host: Tensor | None = None,
    kept: Tensor | None = None,
    gradients: Sequence[Tensor] | None = None,
) -> Any:
    batch, channels, height, width = like.shape
    gate, of_kinds = kinds.arguments(gradients)
    tensors = (host, grad, to_host, kept, rows.table, rows.alpha)
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    sizes = batch, height, width, channels // n, n, len(rows.table), len(kinds.layers)
    return getattr(native.kernel, name)(native.instruction_set(), (*addresses, *gate, *sizes), of_kinds)


class _RunSeeds(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, n: int, rows: SeedRows, keep: bool, layers: Sequence[Tensor], *numbers: Tensor
    ) -> Tensor:
        ctx.n, ctx.rows, ctx.layers = n, rows, layers
        ctx.copies = rows.is_blended and keep
        given, h, kinds = h, laid_out(h), SeedKinds(layers, numbers)
        if rows.is_blended and not keep and h is given:
            ctx.mark_dirty(h)
            out = h
        else:
            out = h.clone() if ctx.copies else h.view_as(h)
        kept = h.new_empty(_call("seeds_room", h, n, rows, kinds))
        _call("run_seeds", h, n, rows, kinds, host=out, kept=kept)
        ctx.save_for_backward(kept, *numbers)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, *numbers = ctx.saved_tensors
        grad, gradients = laid_out(grad), [t.new_zeros(t.shape) for t in numbers]
        to_host = grad.clone() if ctx.copies else grad
        _call(
            *("derive_seeds", grad, ctx.n, ctx.rows, SeedKinds(ctx.layers, numbers)),
            grad=grad,
            to_host=to_host,
            kept=kept,
            gradients=gradients,
        )
        return to_host, None, None, None, None, *gradients
