"""Grafting: how the output of the seeds in a slot meets the activations of their hosts.

A slot runs its seeds segment by segment: in the gather plan a segment is the rows (hosts) that hold one
blueprint, in the masked plan there is one of all rows. Rows whose seed is still isolated get the
straight-through treatment: the host's values and gradients are untouched, the seed receives the task's
gradient. The other rows become

    ADD       h + a (s - h)
    GATE      h + a g(h) (s - h)      g = sigmoid(w . mean(h) + b), one value per image
    MULTIPLY  h + a h tanh(s - h)

where h is the host's activation, s the seed's output and a the alpha of the row. Where a is 0 the row is
the host's, bit for bit, whatever the seed put out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..stacked import Init, Parameters, linear, map_mean, pooled, to_channels, to_rows


@dataclass(frozen=True)
class Block:
    """Neighbouring rows of a segment that are treated alike."""

    start: int
    stop: int
    rows: Tensor | None
    """int64 [stop-start], which hosts; None where they are all hosts in order."""
    multiply: bool | Tensor
    """MULTIPLY or not; a bool [stop-start] where the rows differ (masked plan)."""
    isolated: bool | Tensor
    """Straight-through or not; a bool [stop-start] where the rows differ (masked plan)."""


@dataclass(frozen=True)
class Segment:
    """The k rows of a slot that are run and blended together."""

    rows: Tensor | None
    """int64 [k], which hosts; None where they are all hosts in order."""
    attached: int | Tensor
    """The first so many rows give their gradient back to the host; a bool [k] in the masked plan."""
    blocks: tuple[Block, ...]


def gate_specs(channels: int) -> dict[str, Init]:
    """Tensors of one slot's gate: it begins nearly open, at sigmoid(2) = 0.88, whatever it sees."""
    return {"weight": Init((channels,)), "bias": Init((), fill=2.0)}


def gate(x: Tensor, parameters: Parameters) -> Tensor:
    """[B, k] in 0..1 from x [B, k*C, H, W] and the gates of k rows."""
    weight, bias = parameters["weight"], parameters["bias"]
    score = linear(pooled(x, len(bias)), weight.unsqueeze(1), bias.unsqueeze(1))
    return torch.sigmoid(score).squeeze(2).t()


def gather_rows(h: Tensor, n: int, segment: Segment) -> Tensor:
    """What the seeds of a segment see: [B, k*C, H, W]; only attached rows return a gradient to the host."""
    attached = segment.attached
    seen = h.detach() if isinstance(attached, int) and attached == 0 else h
    rows: Tensor = GatherRows.apply(seen, n, segment.rows, attached)  # type: ignore[no-untyped-call]
    return rows


def take_rows(parameter: Tensor, rows: Tensor | None, frozen: Tensor) -> Tensor:
    """Parameters [k, ...] of some hosts' seeds, from [n, ...]; frozen ones get a gradient of exactly 0."""
    taken: Tensor = TakeRows.apply(parameter, rows, frozen)  # type: ignore[no-untyped-call]
    return taken


def blend(h: Tensor, x: Tensor, s: Tensor, strength: Tensor, n: int, blocks: tuple[Block, ...]) -> Tensor:
    """Put one segment's seeds into the hosts.

    Args:
        h: [B, n*C, H, W], the hosts, perhaps with other segments already put in.
        x: [B, k*C, H, W], what the seeds saw.
        s: [B, k*C, H, W], what they made of it.
        strength: [B, k] or [1, k], alpha times gate; exactly 0 where the host is to be untouched.
        n: hosts in `h`.
        blocks: as planned.

    Returns:
        [B, n*C, H, W].
    """
    out: Tensor = SlotBlend.apply(h, x, s, strength, n, blocks)  # type: ignore[no-untyped-call]
    return out


class GatherRows(torch.autograd.Function):
    """The activations of some hosts; only attached rows return a gradient, the others see a constant."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, n: int, rows: Tensor | None, attached: int | Tensor) -> Tensor:
        ctx.n, ctx.rows, ctx.attached, ctx.shape = n, rows, attached, h.shape
        if rows is None:
            return h.view_as(h)
        return to_channels(to_rows(h, n).index_select(3, rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        if isinstance(ctx.attached, Tensor):
            return to_channels(to_rows(grad, ctx.n).where(ctx.attached.unsqueeze(1), 0.0)), None, None, None
        batch, channels, height, width = ctx.shape
        out = grad.new_zeros(batch, height, width, ctx.n, channels // ctx.n)
        kept = to_rows(grad, ctx.rows.shape[0])[..., : ctx.attached, :]
        return to_channels(out.index_add_(3, ctx.rows[: ctx.attached], kept)), None, None, None


class TakeRows(torch.autograd.Function):
    """The parameters [n, ...] of some hosts' seeds; frozen ones get a gradient of exactly 0."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, rows: Tensor | None, frozen: Tensor) -> Tensor:
        ctx.rows, ctx.frozen, ctx.shape = rows, frozen, parameter.shape
        return parameter.view_as(parameter) if rows is None else parameter.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.masked_fill(ctx.frozen.view(-1, *[1] * (grad.dim() - 1)), 0.0)
        if ctx.rows is None:
            return grad, None, None
        return grad.new_zeros(ctx.shape).index_add_(0, ctx.rows, grad), None, None


class SlotBlend(torch.autograd.Function):
    """`blend`, with a backward written by hand: the host's own gradient passes through uncopied."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, x: Tensor, s: Tensor, strength: Tensor, n: int, blocks: tuple[Block, ...]
    ) -> Tensor:
        ctx.save_for_backward(x, s, strength)
        ctx.blocks, ctx.n = blocks, n
        blended = [block for block in blocks if block.isolated is not True]
        if not blended:
            return h.view_as(h)
        k = strength.shape[1]
        out, x_rows, s_rows = to_rows(h, n).clone(), to_rows(x, k), to_rows(s, k)
        for block in blended:
            part = slice(block.start, block.stop)
            by = _spread(strength[:, part])
            change = by * _direction(x_rows[..., part, :], s_rows[..., part, :], block.multiply)
            change = change.masked_fill_(by == 0.0, 0.0)
            if block.rows is None:
                out += change
            else:
                out.index_add_(3, block.rows, change)
        return to_channels(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, s, strength = ctx.saved_tensors
        k = strength.shape[1]
        grad_rows, x_rows, s_rows = to_rows(grad, ctx.n), to_rows(x, k), to_rows(s, k)
        grad_x = torch.zeros_like(x_rows)
        grad_s = torch.zeros_like(s_rows)
        grad_strength = torch.zeros_like(strength) if ctx.needs_input_grad[3] else None
        for block in ctx.blocks:
            part = slice(block.start, block.stop)
            g = grad_rows if block.rows is None else grad_rows.index_select(3, block.rows)
            if block.isolated is True:
                grad_s[..., part, :] = g
                continue
            here, there = x_rows[..., part, :], s_rows[..., part, :]
            if grad_strength is not None:
                along = row_sums(g * _direction(here, there, block.multiply))
                grad_strength[:, part] = along.masked_fill_(strength[:, part] == 0.0, 0.0)
            by = _spread(strength[:, part])
            scaled = (by * g).masked_fill_(by == 0.0, 0.0)
            to_x, to_s = _direction_gradient(scaled, here, there, block.multiply)
            grad_x[..., part, :] = to_x
            if isinstance(block.isolated, Tensor):
                to_s = torch.where(block.isolated.unsqueeze(1), g, to_s)
            grad_s[..., part, :] = to_s
        seen = to_channels(grad_x) if ctx.needs_input_grad[1] else None
        return grad, seen, to_channels(grad_s), grad_strength, None, None


def _spread(strength: Tensor) -> Tensor:
    """[B, k] as [B, 1, 1, k, 1]."""
    return strength[:, None, None, :, None]


def row_sums(x: Tensor) -> Tensor:
    """[B, H, W, k, C] summed over map and channels: [B, k]."""
    per_channel = map_mean(to_channels(x)).view(x.shape[0], *x.shape[3:])
    return per_channel.sum(2) * (x.shape[1] * x.shape[2])


def _direction(x: Tensor, s: Tensor, multiply: bool | Tensor) -> Tensor:
    """Where alpha leads: [B, H, W, k, C] like `x` and `s`."""
    if multiply is False:
        return s - x
    product = torch.tanh(s - x).mul_(x)
    return product if multiply is True else torch.where(multiply.unsqueeze(1), product, s - x)


def _direction_gradient(g: Tensor, x: Tensor, s: Tensor, multiply: bool | Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `_direction` with respect to x and s."""
    if multiply is False:
        return -g, g
    tanh = torch.tanh(s - x)
    to_s = g * x * (1.0 - tanh * tanh)
    to_x = g * tanh - to_s
    if multiply is True:
        return to_x, to_s
    mask = multiply.unsqueeze(1)
    return torch.where(mask, to_x, -g), torch.where(mask, to_s, g)
