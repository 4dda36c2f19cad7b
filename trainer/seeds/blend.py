"""Grafting: how the output of the seeds in a slot meets the activations of their hosts.

A slot runs its seeds segment by segment: in the gather plan a segment is the rows (hosts) that hold one
blueprint, in the masked plan there is one for all, with rows that nobody's seed needs among them. Rows whose
seed is still isolated get the straight-through treatment: the host's values and gradients are untouched, the
seed receives the task's gradient. The other rows become

    ADD       h + a (s - h)
    GATE      h + a g(h) (s - h)      g = sigmoid(w . mean(h) + b), one value per image,
                                      or sigmoid(w . h + b), one per position, in a causal host
    MULTIPLY  h + a h tanh(s - h)

where h is the host's activation, s the seed's output and a the alpha of the row. Where a is 0 the row is
the host's, bit for bit, whatever the seed put out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    linear,
    map_mean,
    pooled,
    to_channels,
    to_matrices,
    to_rows,
)


@dataclass(frozen=True)
class RowBlock:
    """Neighbouring rows of a segment that are treated alike."""

    start: int
    stop: int
    rows: Tensor
    """int64 [stop-start], which hosts."""
    multiply: bool | Tensor
    """MULTIPLY or not; a bool [stop-start] where the rows differ (masked plan)."""
    isolated: bool | Tensor
    """Straight-through or not; a bool [stop-start] where the rows differ (masked plan): those that are
    neither isolated nor blended have a strength of 0 then."""


@dataclass(frozen=True)
class SeedSegment:
    """The k rows of a slot that are run and blended together."""

    rows: Tensor
    """int64 [k], which hosts. In the masked plan a host may come twice; one of the two has a strength of 0
    then."""
    attached: int
    """Number of first rows that may give their gradient back to the host."""
    blocks: tuple[RowBlock, ...]
    audible: Tensor
    """bool [k], rows whose alpha is not 0. Of the others nothing reaches the host, not even what is not
    finite."""

    @property
    def blended(self) -> bool:
        """True if any row reaches its host."""
        return any(block.isolated is not True for block in self.blocks)


def gate_specs(channels: int) -> dict[str, Init]:
    """Tensors of one slot's gate: it begins nearly open, at sigmoid(2) = 0.88, whatever it sees."""
    return {"weight": Init((channels,)), "bias": Init((), fill=2.0)}


def gate(x: Tensor, parameters: Parameters, *, causal: bool) -> Tensor:
    """0..1 from x [B, k*C, H, W] and the gates of k rows.

    Args:
        causal: one value per position, since a mean over the map would leak those to come.

    Returns:
        [B, 1, 1, k], or [B, H, W, k] where it is causal.
    """
    weight, bias = parameters["weight"], parameters["bias"]
    k, batch, height, width = len(bias), x.shape[0], *x.shape[2:]
    seen = to_matrices(x, k) if causal else pooled(x, k)
    score = linear(seen, weight.unsqueeze(1), bias.unsqueeze(1)).squeeze(2).t()
    return torch.sigmoid(score).view(batch, *((height, width) if causal else (1, 1)), k)


def gather_rows(h: Tensor, n: int, segments: Sequence[SeedSegment]) -> tuple[Tensor, list[Tensor]]:
    """Gather the inputs of a slot's seeds.

    Only attached rows return a gradient to the host; for the others it is a constant.

    Args:
        h: [B, n*C, H, W].

    Returns:
        `h`, to be grafted on, and for each segment [B, k*C, H, W].
    """
    host, *seen = _GatherRows.apply(h, n, segments)  # type: ignore[no-untyped-call]
    return host, seen


def graft(
    h: Tensor,
    n: int,
    segments: Sequence[SeedSegment],
    seen: list[Tensor],
    made: list[Tensor],
    strength: list[Tensor],
) -> Tensor:
    """Put the seeds of a slot into their hosts; where no gradients are recorded, in place.

    Args:
        h: [B, n*C, H, W], as `gather_rows` returned it.
        seen: for each segment [B, k*C, H, W], as `gather_rows` returned it.
        made: what the seeds made of it.
        strength: for each segment alpha times gate, [1, 1, 1, k], [B, 1, 1, k] or [B, H, W, k]; exactly 0
            where the host is to be untouched.

    Returns:
        [B, n*C, H, W].
    """
    if not torch.is_grad_enabled():
        host = to_rows(h, n)
        _put(host, segments, (*seen, *made, *strength))
        return to_channels(host)
    out: Tensor = _Graft.apply(h, n, segments, *seen, *made, *strength)  # type: ignore[no-untyped-call]
    return out


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, n: int, segments: Sequence[SeedSegment]) -> tuple[Tensor, ...]:
        ctx.n, ctx.segments = n, segments
        ctx.set_materialize_grads(False)
        seen = [to_channels(to_rows(h, n).index_select(3, part.rows)) for part in segments]
        apart = [x for x, segment in zip(seen, segments, strict=True) if not segment.blended]
        ctx.mark_non_differentiable(*apart)
        return h.view_as(h), *seen

    @staticmethod
    def backward(ctx: Any, to_host: Tensor, *to_seen: Tensor | None) -> tuple[Tensor, None, None]:
        out = None
        for segment, grad in zip(ctx.segments, to_seen, strict=True):
            if grad is None:
                continue
            if out is None:
                out = to_rows(to_host, ctx.n).clone()
            part = to_rows(grad, len(segment.rows))[..., : segment.attached, :]
            # 0 times what is not finite is not 0
            part = part.where(segment.audible[: segment.attached].unsqueeze(1), 0.0)
            out.index_add_(3, segment.rows[: segment.attached], part.to(out.dtype))
        return to_host if out is None else to_channels(out), None, None


class _Graft(torch.autograd.Function):
    """Its backward passes the host's own gradient on without a copy."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, n: int, segments: Sequence[SeedSegment], *tensors: Tensor) -> Tensor:
        ctx.n, ctx.segments = n, segments
        ctx.save_for_backward(*tensors)
        if not any(segment.blended for segment in segments):
            return h.view_as(h)
        out = to_rows(h, n).clone()
        _put(out, segments, tensors)
        return to_channels(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = to_rows(grad, ctx.n)
        parts = [_backward(rows, *segment) for segment in _by_segment(ctx.segments, ctx.saved_tensors)]
        return (
            grad,
            None,
            None,
            *(part[0] for part in parts),
            *(part[1] for part in parts),
            *(part[2] for part in parts),
        )


def _by_segment(
    segments: Sequence[SeedSegment], tensors: Sequence[Tensor]
) -> list[tuple[SeedSegment, Tensor, Tensor, Tensor]]:
    m = len(segments)
    return list(zip(segments, tensors[:m], tensors[m : 2 * m], tensors[2 * m :], strict=True))


def _put(host: Tensor, segments: Sequence[SeedSegment], tensors: Sequence[Tensor]) -> None:
    """Blend into [B, H, W, n, C], in place."""
    for segment, x, s, strength in _by_segment(segments, tensors):
        k = strength.shape[3]
        x_rows, s_rows = to_rows(x, k), to_rows(s, k)
        for block in segment.blocks:
            if block.isolated is True:
                continue
            part = slice(block.start, block.stop)
            by = strength[..., part].unsqueeze(4)
            change = by * _change(x_rows[..., part, :], s_rows[..., part, :], block.multiply)[0]
            change = change.masked_fill_(by == 0.0, 0.0)  # 0 times what is not finite is not 0
            host.index_add_(3, block.rows, change.to(host.dtype))


def _backward(
    grad: Tensor, segment: SeedSegment, x: Tensor, s: Tensor, strength: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of a segment's x, s and strength, from the host's [B, H, W, n, C]."""
    k = strength.shape[3]
    shape = (*grad.shape[:3], k, grad.shape[4])
    to_strength = torch.zeros_like(strength) if strength.requires_grad else None
    x_rows, s_rows = to_rows(x, k), to_rows(s, k)
    to_x: list[tuple[slice, Tensor]] = []
    to_s: list[tuple[slice, Tensor]] = []
    for block in segment.blocks:
        part = slice(block.start, block.stop)
        g = grad.index_select(3, block.rows)
        if block.isolated is True:
            to_s.append((part, g))
            continue
        here, by = x_rows[..., part, :], strength[..., part].unsqueeze(4)
        change, tanh, product = _change(here, s_rows[..., part, :], block.multiply)
        if to_strength is not None:
            to_strength[..., part] = _row_sums(g * change, strength.shape)
        plain = None if isinstance(block.multiply, bool) else ~block.multiply.unsqueeze(1)
        if isinstance(block.isolated, Tensor):  # its x gives nothing back, see `_GatherRows`
            by = by.masked_fill(block.isolated.unsqueeze(1), 1.0)
            plain = None if plain is None else plain | block.isolated.unsqueeze(1)
        scaled = (by * g).masked_fill_(by == 0.0, 0.0)
        made = _change_gradient(scaled, here, tanh, product, plain)
        to_x.append((part, made[0]))
        to_s.append((part, made[1]))
    seen = to_channels(_joined(to_x, shape)) if segment.blended else None
    return seen, to_channels(_joined(to_s, shape)), to_strength


def _joined(parts: list[tuple[slice, Tensor]], shape: tuple[int, ...]) -> Tensor:
    """Blocks of rows in one tensor of that shape; 0 where there is none."""
    if len(parts) == 1 and parts[0][1].shape == shape:
        return parts[0][1]
    out = parts[0][1].new_zeros(shape)
    for rows, values in parts:
        out[..., rows, :] = values
    return out


def _row_sums(x: Tensor, shape: torch.Size) -> Tensor:
    """[B, H, W, k, C] summed over channels, and over the map too where `shape` has a map of 1x1."""
    if shape[1:3] == x.shape[1:3]:
        return x.sum(4)
    if x.device.type != "cpu":
        return x.sum((1, 2, 4), keepdim=True).squeeze(4)
    channels = map_mean(to_channels(x)).view(x.shape[0], 1, 1, *x.shape[3:])
    return channels.sum(4) * (x.shape[1] * x.shape[2])


def _change(x: Tensor, s: Tensor, multiply: bool | Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The change at alpha 1: [B, H, W, k, C] like `x` and `s`; and tanh(s - x) and its product with x.

    These are None where no row is multiplied.
    """
    difference = s - x
    if multiply is False:
        return difference, None, None
    tanh = torch.tanh(difference)
    product = tanh * x
    if isinstance(multiply, Tensor):
        return torch.where(multiply.unsqueeze(1), product, difference), tanh, product
    return product, tanh, product


def _change_gradient(
    g: Tensor, x: Tensor, tanh: Tensor | None, product: Tensor | None, plain: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of `_change` with respect to x and s.

    Args:
        tanh, product: what it returned.
        plain: bool [k, 1], rows that are not multiplied; None where all are.
    """
    if tanh is None or product is None:
        return -g, g
    slope = x - product * tanh
    if plain is not None:
        slope.masked_fill_(plain, 1.0)
        tanh = tanh.masked_fill(plain, 0.0)
    to_s = slope.mul_(g)
    return (tanh * g).sub_(to_s), to_s
