"""Grafting: how the output of the seeds in a slot meets the activations of their hosts.

A slot runs its seeds segment by segment: in the gather plan a segment is the rows (hosts) that hold one
blueprint, in the masked plan there is one of all rows. Rows whose seed is still isolated get the
straight-through treatment: the host's values and gradients are untouched, the seed receives the task's
gradient. The other rows become

    ADD       h + a (s - h)
    GATE      h + a g(h) (s - h)      g = sigmoid(w . mean(h) + b), one value per image,
                                      or sigmoid(w . h + b), one per position, in a causal host
    MULTIPLY  h + a h tanh(s - h)

where h is the host's activation, s the seed's output and a the alpha of the row. Where a is 0 the row is
the host's, bit for bit, whatever the seed put out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esper_overwatch.trainer.compute import native_rows
from esper_overwatch.trainer.compute.native_convolution import laid_out
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
    rows: Tensor | None
    """int64 [stop-start], which hosts; None where they are all hosts in order."""
    multiply: bool | Tensor
    """MULTIPLY or not; a bool [stop-start] where the rows differ (masked plan)."""
    isolated: bool | Tensor
    """Straight-through or not; a bool [stop-start] where the rows differ (masked plan): those that are
    neither isolated nor blended have a strength of 0 then."""


@dataclass(frozen=True)
class SeedSegment:
    """The k rows of a slot that are run and blended together."""

    rows: Tensor | None
    """int64 [k], which hosts; None where they are all hosts in order."""
    attached: int | Tensor
    """Number of first rows that give their gradient back to the host; a bool [k] in the masked plan."""
    blocks: tuple[RowBlock, ...]
    audible: Tensor | None = None
    """bool [k], rows whose alpha is not 0; None where `attached` says it. Of the others nothing reaches the
    host, not even what is not finite."""

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


def gather_rows(
    h: Tensor, n: int, segments: Sequence[SeedSegment], *, natively: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Gather the inputs of a slot's seeds.

    Only attached rows return a gradient to the host; for the others it is a constant.

    Args:
        h: [B, n*C, H, W].
        natively: by our own kernel, for maps that `native_rows.is_taken` admits; the bits are the same.

    Returns:
        `h`, to be grafted on, and for each segment [B, k*C, H, W].
    """
    natively = natively and all(segment.rows is not None for segment in segments)
    host, *seen = _GatherRows.apply(h, n, segments, natively)  # type: ignore[no-untyped-call]
    return host, seen


def graft(
    h: Tensor,
    n: int,
    segments: Sequence[SeedSegment],
    seen: list[Tensor],
    made: list[Tensor],
    strength: list[Tensor],
    *,
    natively: bool = False,
) -> Tensor:
    """Put the seeds of a slot into their hosts; where no gradients are recorded, in place.

    Args:
        h: [B, n*C, H, W], as `gather_rows` returned it.
        seen: for each segment [B, k*C, H, W], as `gather_rows` returned it.
        made: what the seeds made of it.
        strength: for each segment alpha times gate, [1, 1, 1, k], [B, 1, 1, k] or [B, H, W, k]; exactly 0
            where the host is to be untouched.
        natively: the same.

    Returns:
        [B, n*C, H, W].
    """
    if natively and _is_taken(segments, made, strength):
        if not torch.is_grad_enabled():
            _put_natively(h, n, segments, (*seen, *made, *strength))
            return h
        grafted: Tensor = _NativeGraft.apply(h, n, segments, *seen, *made, *strength)  # type: ignore[no-untyped-call]
        return grafted
    if not torch.is_grad_enabled():
        host = to_rows(h, n)
        _put(host, segments, (*seen, *made, *strength))
        return to_channels(host)
    out: Tensor = _Graft.apply(h, n, segments, *seen, *made, *strength)  # type: ignore[no-untyped-call]
    return out


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, n: int, segments: Sequence[SeedSegment], natively: bool
    ) -> tuple[Tensor, ...]:
        ctx.n, ctx.segments, ctx.natively = n, segments, natively
        ctx.set_materialize_grads(False)
        seen = [h.view_as(h) if part.rows is None else _take(h, n, part.rows, natively) for part in segments]
        apart = [x for x, segment in zip(seen, segments, strict=True) if not segment.blended]
        ctx.mark_non_differentiable(*apart)
        return h.view_as(h), *seen

    @staticmethod
    def backward(ctx: Any, to_host: Tensor, *to_seen: Tensor | None) -> tuple[Tensor, None, None, None]:
        if ctx.natively:
            return _add_natively(to_host, ctx.n, ctx.segments, to_seen), None, None, None
        out = None
        for segment, grad in zip(ctx.segments, to_seen, strict=True):
            if grad is None:
                continue
            if out is None:
                out = to_rows(to_host, ctx.n).clone()
            if isinstance(segment.attached, Tensor):
                out += to_rows(grad, ctx.n).where(segment.attached.unsqueeze(1), 0.0)
            else:
                part = to_rows(grad, len(segment.rows))[..., : segment.attached, :]
                if segment.audible is not None:  # 0 times what is not finite is not 0
                    part = part.where(segment.audible[: segment.attached].unsqueeze(1), 0.0)
                out.index_add_(3, segment.rows[: segment.attached], part.to(out.dtype))
        return to_host if out is None else to_channels(out), None, None, None


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


class _NativeGraft(torch.autograd.Function):
    """`_Graft` by the kernel of our own."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, n: int, segments: Sequence[SeedSegment], *tensors: Tensor) -> Tensor:
        ctx.n, ctx.segments = n, segments
        out = h.view_as(h)
        tanh: list[Tensor | None] = []
        if any(segment.blended for segment in segments):
            out = laid_out(h.clone())
            tanh = _put_natively(out, n, segments, tensors)
        m = len(segments)
        made = [s if by.requires_grad else None for _, _, s, by in _by_segment(segments, tensors)]
        ctx.save_for_backward(*tensors[:m], *made, *tensors[2 * m :], *tanh)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m, saved = len(ctx.segments), ctx.saved_tensors
        tanh = iter(saved[3 * m :])
        rows = laid_out(grad)
        parts = [
            _backward_natively(rows, ctx.n, *each, tanh) for each in _by_segment(ctx.segments, saved[: 3 * m])
        ]
        to_x, to_s, to_strength = zip(*parts, strict=True)
        return grad, None, None, *to_x, *to_s, *to_strength


def _is_taken(segments: Sequence[SeedSegment], made: list[Tensor], strength: list[Tensor]) -> bool:
    """True if rows are chosen, and blended in a number type that the kernel has."""
    return all(
        segment.rows is not None and out.dtype == by.dtype == torch.float32
        for segment, out, by in zip(segments, made, strength, strict=True)
    )


def _take(h: Tensor, n: int, rows: Tensor, natively: bool) -> Tensor:
    if natively:
        return native_rows.take_rows(h, n, rows)
    return to_channels(to_rows(h, n).index_select(3, rows))


def _add_natively(
    to_host: Tensor, n: int, segments: Sequence[SeedSegment], to_seen: Sequence[Tensor | None]
) -> Tensor:
    """The gradient of a map and those of the rows that were taken from it."""
    pairs = [(part, grad) for part, grad in zip(segments, to_seen, strict=True) if grad is not None]
    out = laid_out(to_host.clone()) if pairs else to_host
    for segment, grad in pairs:
        assert segment.rows is not None
        assert isinstance(segment.attached, int)
        part = range(segment.attached)
        native_rows.add_rows(out, n, segment.rows, part, laid_out(grad), segment.audible)
    return out


def _put_natively(
    host: Tensor, n: int, segments: Sequence[SeedSegment], tensors: Sequence[Tensor]
) -> list[Tensor | None]:
    """Blend into [B, n*C, H, W], in place; tanh(s - x) of each block that is not isolated and multiplies."""
    found: list[Tensor | None] = []
    for segment, x, s, strength in _by_segment(segments, tensors):
        assert segment.rows is not None
        made, k = laid_out(s), strength.shape[3]
        for block in segment.blocks:
            if block.isolated:
                continue
            tanh, part = None, slice(block.start, block.stop)
            if block.multiply:
                there, here = (to_rows(t, k)[..., part, :] for t in (made, x))
                tanh = torch.tanh((there - here).contiguous())
            rows = range(block.start, block.stop)
            native_rows.blend_rows(host, n, segment.rows, rows, x, made, tanh, strength)
            found.append(tanh)
    return found


def _backward_natively(
    grad: Tensor,
    n: int,
    segment: SeedSegment,
    x: Tensor,
    s: Tensor | None,
    strength: Tensor,
    tanh: Iterator[Tensor | None],
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of a segment's x, s and strength, from the host's [B, n*C, H, W].

    Args:
        s: None where the strength wants no gradient.
    """
    assert segment.rows is not None
    is_whole = segment.blocks[-1].stop == len(segment.rows)
    if not segment.blended and is_whole:
        return None, native_rows.take_rows(grad, n, segment.rows), None
    fresh = torch.empty_like if is_whole else torch.zeros_like
    to_x, to_s = fresh(x) if segment.blended else None, fresh(x)
    made = None if s is None else laid_out(s)
    to_strength = None if s is None else torch.zeros_like(strength)
    channels = x.shape[1] // len(segment.rows)
    pixels = x.shape[2] * x.shape[3] // (strength.shape[1] * strength.shape[2])
    for block in segment.blocks:
        isolated, sums = block.isolated is True, None
        if made is not None and not isolated:
            sums = made.new_zeros(*strength.shape[:3], block.stop - block.start, channels)
        native_rows.derive_rows(
            grad,
            n,
            segment.rows,
            range(block.start, block.stop),
            x,
            made,
            None if isolated else next(tanh),
            strength,
            to_x,
            to_s,
            sums,
            isolated=isolated,
        )
        if to_strength is not None and sums is not None:  # the same roundings as in `_row_sums`
            to_strength[..., block.start : block.stop] = (sums / pixels).sum(4) * pixels
    return to_x, to_s, to_strength


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
            change = by * _direction(x_rows[..., part, :], s_rows[..., part, :], block.multiply)
            change = change.masked_fill_(by == 0.0, 0.0)  # 0 times what is not finite is not 0
            if block.rows is None:
                host += change
            else:
                host.index_add_(3, block.rows, change.to(host.dtype))


def _backward(
    grad: Tensor, segment: SeedSegment, x: Tensor, s: Tensor, strength: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of a segment's x, s and strength, from the host's [B, H, W, n, C]."""
    k = strength.shape[3]
    if not segment.blended and segment.rows is not None and segment.blocks[-1].stop == k:
        return None, to_channels(grad.index_select(3, segment.rows)), None
    shape = (*grad.shape[:3], k, grad.shape[4])
    to_s = grad.new_zeros(shape) if segment.blocks[-1].stop < k else grad.new_empty(shape)
    to_x = grad.new_zeros(shape) if segment.blended else None
    to_strength = torch.zeros_like(strength) if strength.requires_grad else None
    x_rows, s_rows = to_rows(x, k), to_rows(s, k)
    for block in segment.blocks:
        part = slice(block.start, block.stop)
        g = grad if block.rows is None else grad.index_select(3, block.rows)
        if to_x is None or block.isolated is True:
            to_s[..., part, :] = g
            continue
        here, there, by = x_rows[..., part, :], s_rows[..., part, :], strength[..., part].unsqueeze(4)
        if to_strength is not None:
            to_strength[..., part] = _row_sums(g * _direction(here, there, block.multiply), strength.shape)
        scaled = by * g
        if isinstance(block.isolated, Tensor):
            scaled = scaled.masked_fill_(by == 0.0, 0.0)
        to_x[..., part, :], change = _direction_gradient(scaled, here, there, block.multiply)
        if isinstance(block.isolated, Tensor):
            change = torch.where(block.isolated.unsqueeze(1), g, change)
        to_s[..., part, :] = change
    return None if to_x is None else to_channels(to_x), to_channels(to_s), to_strength


def _row_sums(x: Tensor, shape: torch.Size) -> Tensor:
    """[B, H, W, k, C] summed over channels, and over the map too where `shape` has a map of 1x1."""
    if shape[1:3] == x.shape[1:3]:
        return x.sum(4)
    channels = map_mean(to_channels(x)).view(x.shape[0], 1, 1, *x.shape[3:])
    return channels.sum(4) * (x.shape[1] * x.shape[2])


def _direction(x: Tensor, s: Tensor, multiply: bool | Tensor) -> Tensor:
    """The change at alpha 1: [B, H, W, k, C] like `x` and `s`."""
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
