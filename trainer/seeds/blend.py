"""Grafting: how the output of the seeds in a slot meets the activations of their hosts.

In the gather plan a slot runs its seeds segment by segment, a segment being the rows (hosts) that hold one
blueprint; in the masked plan each blueprint runs on more rows than hold it, and what the seeds put out goes
to the rows of their hosts before it is blended. Rows whose seed is still isolated get the straight-through
treatment: the host's values and gradients are untouched, the seed receives the task's gradient. The other
rows become

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
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.pointwise import FusedFormula
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

T = TypeVar("T")


@dataclass(frozen=True)
class RowBlock:
    """Neighbouring rows of a segment that are treated alike."""

    start: int
    stop: int
    rows: Tensor
    """int64 [stop-start], which hosts."""
    multiply: bool
    """MULTIPLY or not."""
    isolated: bool
    """Straight-through or not."""


@dataclass(frozen=True)
class SeedSegment:
    """The k rows of a slot that are run and blended together."""

    rows: Tensor
    """int64 [k], which hosts."""
    attached: int
    """Number of first rows that may give their gradient back to the host."""
    blocks: tuple[RowBlock, ...]
    audible: Tensor
    """bool [k], rows whose alpha is not 0. Of the others nothing reaches the host, not even what is not
    finite."""

    @property
    def blended(self) -> bool:
        """True if any row reaches its host."""
        return not all(block.isolated for block in self.blocks)


@dataclass(frozen=True)
class SeedPlaces:
    """Where the seeds of a slot are run in the masked plan, and what each of its R rows does with its own."""

    counts: tuple[int, ...]
    """Rows that each blueprint is run on."""
    rows: Tensor
    """int64 [k], which these are, one blueprint after the other; some need it not."""
    places: Tensor
    """int64 [R], which of the k is each row's own; any where it has none."""
    multiply: Tensor
    """bool [R, 1]."""
    isolated: Tensor
    """bool [R, 1]."""
    audible: Tensor
    """bool [R, 1], as in `SeedSegment`."""


def gate_specs(channels: int) -> dict[str, Init]:
    """Tensors of one slot's gate: it begins nearly open, at sigmoid(2) = 0.88, whatever it sees."""
    return {"weight": Init((channels,)), "bias": Init((), fill=2.0)}


def gate_alpha(alpha: Tensor, gated: Tensor, x: Tensor, parameters: Parameters, *, causal: bool) -> Tensor:
    """Alpha [k], times what the gates of k rows make of x [B, k*C, H, W] where rows are gated, bool [k].

    Args:
        causal: one value per position, since a mean over the map would leak those to come.

    Returns:
        [B, 1, 1, k], or [B, H, W, k] where it is causal.
    """
    weight, bias = parameters["weight"], parameters["bias"]
    k, batch, height, width = len(bias), x.shape[0], *x.shape[2:]
    seen = to_matrices(x, k) if causal else pooled(x, k)
    score = linear(seen, weight.unsqueeze(1), bias.unsqueeze(1)).squeeze(2).t()
    score = score.view(batch, *((height, width) if causal else (1, 1)), k)
    if score.device.type == "cpu":
        return torch.where(gated, alpha * torch.sigmoid(score), alpha)
    out: Tensor = _GatedAlpha.apply(score, alpha, gated)  # type: ignore[no-untyped-call]
    return out


class _GatedAlpha(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return GATED_ALPHA(*tensors)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return GATED_ALPHA_GRADIENT(grad, *ctx.saved_tensors)[0], None, None


class SeenRows(NamedTuple):
    """What a segment's seeds see, [B, k*C, H, W], once for each that returns a gradient to it."""

    by_seeds: Tensor
    by_gates: Tensor
    by_graft: Tensor


def gather_rows(h: Tensor, n: int, segments: Sequence[SeedSegment]) -> tuple[Tensor, list[SeenRows]]:
    """Gather the inputs of a slot's seeds.

    Only attached rows return a gradient to the host; for the others it is a constant.

    Args:
        h: [B, n*C, H, W].

    Returns:
        `h`, to be grafted on, and the rows of each segment.
    """
    host, *seen = _GatherRows.apply(h, n, segments)  # type: ignore[no-untyped-call]
    return host, [SeenRows(*three) for three in _threes(seen)]


def _threes(tensors: Sequence[T]) -> list[Sequence[T]]:
    return [tensors[i : i + 3] for i in range(0, len(tensors), 3)]


def graft(
    h: Tensor,
    n: int,
    segments: Sequence[SeedSegment],
    seen: list[SeenRows],
    made: list[Tensor],
    strength: list[Tensor],
) -> Tensor:
    """Put the seeds of a slot into their hosts; where no gradients are recorded, in place.

    Args:
        h: [B, n*C, H, W], as `gather_rows` returned it.
        seen: for each segment, as `gather_rows` returned it.
        made: what the seeds made of it.
        strength: for each segment alpha times gate, [1, 1, 1, k], [B, 1, 1, k] or [B, H, W, k]; exactly 0
            where the host is to be untouched.

    Returns:
        [B, n*C, H, W].
    """
    inputs = [rows.by_graft for rows in seen]
    if not torch.is_grad_enabled():
        host = to_rows(h, n)
        _put(host, segments, (*inputs, *made, *strength))
        return to_channels(host)
    out: Tensor = _Graft.apply(h, n, segments, *inputs, *made, *strength)  # type: ignore[no-untyped-call]
    return out


def take_seen(h: Tensor, n: int, seeds: SeedPlaces, *, plain: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Take the inputs of a slot's seeds, and of its gates, in the masked plan.

    Args:
        h: [B, n*C, H, W].
        plain: whether seeds get them as contiguous memory, in which a GPU normalises groups, else in
            channels_last.

    Returns:
        `h`, to be blended with; `h` for all gates; and for each blueprint [B, k*C, H, W].
    """
    host, at_gates, *seen = _TakeSeen.apply(h, n, seeds, plain)  # type: ignore[no-untyped-call]
    return host, at_gates, seen


def blend_seeds(
    h: Tensor, n: int, seeds: SeedPlaces, made: list[Tensor], strength: Tensor, *, plain: bool
) -> Tensor:
    """Blend the seeds of a slot with their hosts in the masked plan.

    Args:
        h: [B, n*C, H, W], as `take_seen` returned it.
        made: what the seeds of each blueprint add to it.
        strength: alpha times gate, [1, 1, 1, n], [B, 1, 1, n] or [B, H, W, n]; exactly 0 where the host is
            to be untouched.
        plain: as `take_seen` has it.
    """
    out: Tensor = _BlendSeeds.apply(h, n, seeds, plain, strength, *made)  # type: ignore[no-untyped-call]
    return out


def _taken(h: Tensor, n: int, rows: Tensor, *, plain: bool) -> Tensor:
    """[B, k*C, H, W] of k of the n rows."""
    if plain:
        return h.view(len(h), n, -1, *h.shape[2:]).index_select(1, rows).flatten(1, 2)
    return to_channels(to_rows(h, n).index_select(3, rows))


def _at_hosts(parts: Sequence[Tensor], seeds: SeedPlaces) -> Tensor:
    """What is of seeds [B, k*C, H, W], by blueprint, at the rows that own them: [B, H, W, R, C]."""
    return to_rows(torch.cat(list(parts), dim=1), len(seeds.rows)).index_select(3, seeds.places)


class _TakeSeen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, n: int, seeds: SeedPlaces, plain: bool) -> tuple[Tensor, ...]:
        ctx.n, ctx.seeds = n, seeds
        by_kind = torch.split(seeds.rows, list(seeds.counts))
        return h.view_as(h), h.view_as(h), *(_taken(h, n, rows, plain=plain) for rows in by_kind)

    @staticmethod
    def backward(ctx: Any, to_host: Tensor, to_gates: Tensor, *to_seen: Tensor) -> tuple[Tensor | None, ...]:
        host, gates = (to_rows(grad, ctx.n) for grad in (to_host, to_gates))
        (out,) = AUDIBLE_SUM(host, _at_hosts(to_seen, ctx.seeds), gates, ctx.seeds.audible)
        return to_channels(out), None, None, None


class _BlendSeeds(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, n: int, seeds: SeedPlaces, plain: bool, strength: Tensor, *made: Tensor
    ) -> Tensor:
        ctx.n, ctx.seeds, ctx.plain = n, seeds, plain
        x, d = to_rows(h, n), _at_hosts(made, seeds)
        ctx.save_for_backward(x, d, strength)
        (out,) = MIXED_BLEND(strength.unsqueeze(4), x, d, seeds.multiply)
        return to_channels(out.to(h.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, d, strength = ctx.saved_tensors
        seeds, channels = ctx.seeds, x.shape[4]
        flags = seeds.multiply, seeds.isolated
        to_x, to_d, to_by = MIXED_GRADIENT(to_rows(grad, ctx.n), strength.unsqueeze(4), x, d, *flags)
        opening = _row_sums(to_by, strength.shape) if ctx.needs_input_grad[4] else None
        rows = _taken(to_channels(to_d), ctx.n, seeds.rows, plain=ctx.plain)
        parts = torch.split(rows, [count * channels for count in seeds.counts], dim=1)
        return to_channels(to_x), None, None, None, opening, *parts


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, n: int, segments: Sequence[SeedSegment]) -> tuple[Tensor, ...]:
        ctx.n, ctx.segments = n, segments
        ctx.set_materialize_grads(False)
        seen = [to_channels(to_rows(h, n).index_select(3, part.rows)) for part in segments]
        seen = [alias for x in seen for alias in (x, x.view_as(x), x.view_as(x))]
        apart = [x for x3, part in zip(_threes(seen), segments, strict=True) if not part.blended for x in x3]
        ctx.mark_non_differentiable(*apart)
        return h.view_as(h), *seen

    @staticmethod
    def backward(ctx: Any, to_host: Tensor, *to_seen: Tensor | None) -> tuple[Tensor, None, None]:
        out = None
        for segment, grads in zip(ctx.segments, _threes(to_seen), strict=True):
            k, audible = len(segment.rows), segment.audible[: segment.attached].unsqueeze(1)
            parts = [to_rows(g, k)[..., : segment.attached, :] for g in grads if g is not None]
            if not parts:
                continue
            if out is None:
                out = to_rows(to_host, ctx.n).clone()
            part = reduce(torch.add, parts).where(audible, 0.0)  # 0 times NaN is not 0
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
            if block.isolated:
                continue
            part = slice(block.start, block.stop)
            by, here, made = strength[..., part].unsqueeze(4), x_rows[..., part, :], s_rows[..., part, :]
            change = _scaled(by, _change(here, made, multiply=block.multiply)[0])
            host.index_add_(3, block.rows, change.to(host.dtype))


def _backward(
    grad: Tensor, segment: SeedSegment, x: Tensor, s: Tensor, strength: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of a segment's x, s and strength, from the host's [B, H, W, n, C]."""
    k = strength.shape[3]
    shape = (*grad.shape[:3], k, grad.shape[4])
    x_rows, s_rows = to_rows(x, k), to_rows(s, k)
    to_x: list[tuple[slice, Tensor]] = []
    to_s: list[tuple[slice, Tensor]] = []
    to_strength: list[tuple[slice, Tensor]] = []
    for block in segment.blocks:
        part = slice(block.start, block.stop)
        g = grad.index_select(3, block.rows)
        if block.isolated:
            to_s.append((part, g))
            continue
        here, by = x_rows[..., part, :], strength[..., part].unsqueeze(4)
        by_x, by_s, by_strength = _gradient(g, by, here, s_rows[..., part, :], multiply=block.multiply)
        if strength.requires_grad:
            to_strength.append((part, _row_sums(by_strength, strength.shape).unsqueeze(4)))
        to_x.append((part, by_x))
        to_s.append((part, by_s))
    seen = to_channels(_joined(to_x, shape)) if segment.blended else None
    opening = _joined(to_strength, (*strength.shape, 1)).squeeze(4) if to_strength else None
    return seen, to_channels(_joined(to_s, shape)), opening


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


def _scaled(by: Tensor, x: Tensor) -> Tensor:
    """by * x; 0 where `by` is, as 0 times what is not finite is not 0."""
    return (by * x).masked_fill_(by == 0.0, 0.0)


def _change(x: Tensor, s: Tensor, *, multiply: bool) -> tuple[Tensor, Tensor | None]:
    """The change at alpha 1: [B, H, W, k, C] like `x` and `s`; and tanh(s - x) where rows are multiplied."""
    difference = s - x
    if not multiply:
        return difference, None
    tanh = torch.tanh(difference)
    return tanh * x, tanh


def _gradient(
    g: Tensor, by: Tensor, x: Tensor, s: Tensor, *, multiply: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of by * change with respect to x and s; and that of `by`, to be summed."""
    change, tanh = _change(x, s, multiply=multiply)
    scaled = _scaled(by, g)
    if tanh is None:
        return -scaled, scaled, g * change
    to_s = (x - change * tanh).mul_(scaled)
    return (tanh * scaled).sub_(to_s), to_s, g * change


def _audible_sum(host: Tensor, by_seeds: Tensor, by_gates: Tensor, audible: Tensor) -> tuple[Tensor]:
    """The host's gradient, and the others where a seed is heard, bool [n, 1]: 0 times NaN is not 0."""
    return (torch.where(audible, host + by_seeds + by_gates, host),)


def _mixed_blend(by: Tensor, x: Tensor, d: Tensor, multiply: Tensor) -> tuple[Tensor]:
    """h + a d, or h + a h tanh(d), where a seed adds d to h; exactly h where a is 0."""
    return (torch.where(by == 0.0, x, x + by * torch.where(multiply, torch.tanh(d) * x, d)),)


def _mixed_gradient(
    g: Tensor, by: Tensor, x: Tensor, d: Tensor, multiply: Tensor, isolated: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of that with respect to h, d and, to be summed, a; some rows are isolated, bool [n, 1].

    The seed of an isolated row has the gradient of its output as it is.
    """
    multiply, tanh = multiply & ~isolated, torch.tanh(d)
    scaled = _scaled(by.masked_fill(isolated, 1.0), g)
    change = torch.where(multiply, tanh * x, d)
    to_x = torch.where(multiply & (by != 0.0), g + tanh * scaled, g)
    return to_x, torch.where(multiply, (x - change * tanh) * scaled, scaled), g * change


def _gated_alpha_gradient(g: Tensor, score: Tensor, alpha: Tensor, gated: Tensor) -> tuple[Tensor]:
    """The gradient of `GATED_ALPHA` with respect to the score."""
    opening = torch.sigmoid(score)
    return ((g * alpha * (1.0 - opening) * opening).masked_fill(~gated, 0.0),)


GATED_ALPHA = FusedFormula(
    """template <typename T> void gated_alpha(T score, T alpha, T gated, T& out) {
        out = gated != T(0) ? alpha / (T(1) + ::exp(-score)) : alpha;
    }""",
    1,
    lambda score, alpha, gated: (torch.where(gated, alpha * torch.sigmoid(score), alpha),),
)
"""alpha sigmoid(score) of gated rows, alpha of others."""
GATED_ALPHA_GRADIENT = FusedFormula(
    """template <typename T> void gated_alpha_gradient(T g, T score, T alpha, T gated, T& out) {
        const T opening = T(1) / (T(1) + ::exp(-score));
        out = gated != T(0) ? g * alpha * (T(1) - opening) * opening : T(0);
    }""",
    1,
    _gated_alpha_gradient,
)
"""See `_gated_alpha_gradient`."""
AUDIBLE_SUM = FusedFormula(
    """template <typename T> void audible_sum(T host, T by_seeds, T by_gates, T audible, T& out) {
        out = audible != T(0) ? host + by_seeds + by_gates : host;
    }""",
    1,
    _audible_sum,
)
"""See `_audible_sum`."""
MIXED_BLEND = FusedFormula(
    """template <typename T> void mixed_blend(T by, T x, T d, T multiply, T& out) {
        out = by == T(0) ? x : x + by * (multiply != T(0) ? ::tanh(d) * x : d);
    }""",
    1,
    _mixed_blend,
)
"""See `_mixed_blend`."""
MIXED_GRADIENT = FusedFormula(
    """template <typename T> void mixed_gradient(
        T g, T by, T x, T d, T multiply, T isolated, T& to_x, T& to_d, T& to_by
    ) {
        const bool multiplied = multiply != T(0) && isolated == T(0);
        const T tanh = multiplied ? ::tanh(d) : T(0), change = multiplied ? tanh * x : d;
        const T factor = isolated != T(0) ? T(1) : by, scaled = factor == T(0) ? T(0) : factor * g;
        to_x = multiplied && by != T(0) ? g + tanh * scaled : g;
        to_d = multiplied ? (x - change * tanh) * scaled : scaled;
        to_by = g * change;
    }""",
    3,
    _mixed_gradient,
)
"""See `_mixed_gradient`."""
