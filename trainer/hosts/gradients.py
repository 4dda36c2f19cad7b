"""Gradient statistics of stacked parameters: everything per row (host or seed), nothing per env.

Sums of squares are taken in float64, where they cannot overflow. Collectors read a tensor piece by piece,
since torch makes a float64 copy of whatever it sums up in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import accumulate

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.joined_rows import joined, made_once, parted, portions, rows_at, spread
from esper_overwatch.trainer.compute.stacked_ops import expand_rows
from esper_overwatch.trainer.config.seed_options import GatesConfig

DEFAULT_GATES = GatesConfig()
MAX_PIECE_NUMBERS = 2048
"""Numbers of a row that a collector reads together, of all rows: 512 KiB as float64 where there are 32."""
ACTIVATIONS = ("activation_rms", "activation_max", "activation_zero_fraction")
MAX_ACTIVATION_PIECE_NUMBERS = 2**15
"""Numbers of one host's activation that are read together: less than a training step has in memory."""


def row_norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of each row of each tensor: float64 [T, n] from T tensors [n, ...]."""
    return _norms(tensors, _row_norms)


def _norms(tensors: Sequence[Tensor], alone: Callable[[Tensor], Tensor]) -> Tensor:
    """`row_norms`, given how the rows of a tensor are measured that is not joined with others."""
    norms: dict[int, Tensor] = {}
    for places in portions(tensors):
        part = [tensors[i] for i in places]
        found = alone(part[0]).unsqueeze(0) if len(part) == 1 else norms_together(part)
        if len(part) == len(tensors):
            return found
        norms |= zip(places, found, strict=True)
    return torch.stack([norms[i] for i in range(len(tensors))])


def norms_together(tensors: Sequence[Tensor]) -> Tensor:
    """`row_norms` of small tensors on a GPU."""
    rows = torch.cat([t.reshape(len(t), -1) for t in tensors], dim=1)
    offsets = _offsets(len(rows), tuple(t[0].numel() for t in tensors), rows.device)
    squares = rows.double().square_().view(-1)
    sums = torch.segment_reduce(squares, "sum", offsets=offsets, unsafe=True)
    return sums.sqrt_().view(len(rows), -1).t()


def scaled_rows(tensors: Sequence[Tensor], factors: Tensor) -> list[Tensor]:
    """Each row of T tensors [n, ...] times a factor, [T, n]."""
    scaled: dict[int, Tensor] = {}
    for places in portions(tensors):
        part, by = [tensors[i] for i in places], rows_at(factors, places)
        found = [part[0] * expand_rows(by, part[0])] if len(part) == 1 else scaled_together(part, by)
        scaled |= zip(places, found, strict=True)
    return [scaled[i] for i in range(len(tensors))]


def scaled_together(tensors: Sequence[Tensor], factors: Tensor) -> list[Tensor]:
    """`scaled_rows` of small tensors on a GPU."""
    return parted(joined(tensors) * spread(factors, tensors), tensors)


@made_once
def _offsets(n: int, widths: tuple[int, ...], device: torch.device) -> Tensor:
    """Where the parts of n rows begin, and where the last one ends."""
    starts = torch.stack([torch.full((), at, device=device) for at in accumulate(widths, initial=0)])
    rows = torch.arange(n, device=device).unsqueeze(1) * sum(widths)
    return torch.cat([(rows + starts[:-1]).view(-1), starts[-1:] * n])


def _row_norms(tensor: Tensor) -> Tensor:
    rows = tensor.reshape(tensor.shape[0], -1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor [n, ...] as matrices [n, at most `MAX_PIECE_NUMBERS`]; nothing larger is ever copied."""
    width = tensor[0].numel()
    if width <= MAX_PIECE_NUMBERS:
        yield tensor.reshape(tensor.shape[0], -1)
        return
    dim = max(range(1, tensor.dim()), key=lambda d: tensor.shape[d])
    length = tensor.shape[dim]
    step = max(1, length * MAX_PIECE_NUMBERS // width)
    for start in range(0, length, step):
        yield from pieces(tensor.narrow(dim, start, min(step, length - start)))


def collected_norms(tensors: Sequence[Tensor]) -> Tensor:
    """`row_norms` in pieces: slower where rows are long, without a copy of them."""
    return _norms(tensors, _norm)


def _norm(tensor: Tensor) -> Tensor:
    """float64 [n]. Squares of float32 numbers have room enough in float64, so those of pieces just add up."""
    if tensor[0].numel() <= MAX_PIECE_NUMBERS:
        return _row_norms(tensor)
    square = torch.zeros(len(tensor), dtype=torch.float64, device=tensor.device)
    for piece in pieces(tensor):
        square += _row_norms(piece).square_()
    return square.sqrt_()


def norm_and_health(
    norms: Tensor, present: Tensor, gates: GatesConfig = DEFAULT_GATES
) -> tuple[Tensor, Tensor]:
    """L2 norm over the tensors of a module, and the share of them with a usable gradient.

    A gradient is usable where its norm is finite, has not vanished and has not exploded.

    Args:
        norms: [T, n] as `row_norms` gives them.
        present: bool [T, n], which tensors a row has.
        gates: below which norm a gradient has vanished, and above which it has exploded.

    Returns:
        Two float32 [n]; NaN where a row has none.
    """
    count = present.sum(0)
    usable = present & (norms >= gates.min_gradient_norm) & (norms <= gates.max_gradient_norm)
    total = torch.linalg.vector_norm(norms.masked_fill(~present, 0.0), dim=0)
    nothing = count == 0
    return (
        total.masked_fill(nothing, float("nan")).float(),
        (usable.sum(0) / count.clamp_min(1)).masked_fill(nothing, float("nan")).float(),
    )


def spread_layers(names: Sequence[str], own: Sequence[str], values: Tensor) -> Tensor:
    """Rows [L', n] of the layers `own` as rows [L, n] of all layers `names`; NaN where there is none."""
    known, none = dict(zip(own, values, strict=True)), values.new_full(values.shape[1:], torch.nan)
    return torch.stack([known.get(name, none) for name in names])


@dataclass
class LayerTensors:
    """Statistics of an epoch's last step: L layers by N envs, float32; NaN where an env lacks the layer."""

    names: list[str]
    grad_norm: Tensor
    grad_rms: Tensor
    grad_max: Tensor
    zero_fraction: Tensor
    nonfinite: Tensor
    """Count of gradients that are NaN or infinite."""
    weight_norm: Tensor
    activation_rms: Tensor
    activation_max: Tensor
    activation_zero_fraction: Tensor
    """Behind a ReLU: the share that is off."""

    def with_outputs(self, outputs: dict[str, Tensor], present: Tensor) -> LayerTensors:
        """Append a row for what each module put out.

        Args:
            outputs: A tensors [3, n] by name, as `of_activations` gives them.
            present: bool [A, n], where an env has the module and was asked for.
        """
        unmeasured = torch.full(present.shape, float("nan"), device=present.device)
        beneath = dict(zip(ACTIVATIONS, torch.stack(list(outputs.values()), dim=1), strict=True))
        columns = {
            name: torch.cat([getattr(self, name), _where(present, beneath.get(name, unmeasured))])
            for name in (f.name for f in fields(self) if f.name != "names")
        }
        return LayerTensors(names=[*self.names, *outputs], **columns)

    @classmethod
    def joined(cls, parts: Sequence[LayerTensors]) -> LayerTensors:
        """The statistics of several groups, side by side; a layer that a group lacks is NaN there."""
        names = list(dict.fromkeys(name for part in parts for name in part.names))
        columns = [f.name for f in fields(cls) if f.name != "names"]
        merged = {
            column: torch.cat([spread_layers(names, p.names, getattr(p, column)) for p in parts], dim=1)
            for column in columns
        }
        return cls(names=names, **merged)


def layer_statistics(
    names: list[str], gradients: Sequence[Tensor], weights: Sequence[Tensor], present: Tensor
) -> LayerTensors:
    """Statistics of each layer of each env.

    Args:
        names: of the L layers.
        gradients: L tensors [n, ...].
        weights: L tensors [n, ...].
        present: bool [L, n], where an env has the layer and was asked for.
    """
    rows = summary(gradients)
    absent = torch.full(present.shape, float("nan"), device=present.device)
    return LayerTensors(
        names=names,
        grad_norm=_where(present, rows.norm),
        grad_rms=_where(present, rows.rms),
        grad_max=_where(present, rows.largest),
        zero_fraction=_where(present, rows.zero_fraction),
        nonfinite=_where(present, rows.nonfinite),
        weight_norm=_where(present, collected_norms([w.detach() for w in weights])),
        activation_rms=absent,
        activation_max=absent,
        activation_zero_fraction=absent,
    )


@dataclass
class TensorSummary:
    """Statistics of the rows of T tensors [n, ...]: float64 [T, n]."""

    norm: Tensor
    rms: Tensor
    largest: Tensor
    """Largest of the magnitudes; NaN where one is NaN."""
    zero_fraction: Tensor
    nonfinite: Tensor
    """Count of NaN and infinities."""


def summary(tensors: Sequence[Tensor]) -> TensorSummary:
    """Summarise every number of some tensors [n, ...], in pieces.

    Small tensors whose rows are of one length are read together. Copies nothing to the device, as that
    would wait for it.
    """
    rows: dict[int, Tensor] = {}
    alike: dict[int, list[int]] = {}
    for i, tensor in enumerate(tensors):
        alike.setdefault(tensor[0].numel(), []).append(i)
    for width, places in alike.items():
        together = max(1, MAX_PIECE_NUMBERS // width)
        for start in range(0, len(places), together):
            some = places[start : start + together]
            found = _summary([tensors[i].detach() for i in some])
            rows |= zip(some, found.unbind(1), strict=True)
    return TensorSummary(*torch.stack([rows[i] for i in range(len(tensors))], dim=1))


def _summary(tensors: Sequence[Tensor]) -> Tensor:
    """[5, k, n], the fields of `TensorSummary`; several tensors only where their rows are short and alike."""
    width = tensors[0][0].numel()
    if len(tensors) > 1:
        found = _norm_statistics(torch.stack([t.reshape(len(t), -1) for t in tensors]))
    else:
        found = reduce(
            _merge_statistics, (_norm_statistics(piece.unsqueeze(0)) for piece in pieces(tensors[0]))
        )
    square, largest, zeros, nonfinite = found
    return torch.stack([square.sqrt(), (square / width).sqrt(), largest, zeros / width, nonfinite])


def _merge_statistics(one: Tensor, other: Tensor) -> Tensor:
    """Merge two pieces' statistics into those of both, as `_norm_statistics` would give them."""
    largest = torch.maximum(one[1], other[1])
    total = one + other
    total[1] = largest
    return total


def _norm_statistics(rows: Tensor) -> Tensor:
    """float64 [4, k, n] of [k, n, w]: sums of squares, largest magnitudes, how many are 0 and not finite.

    A comparison written as numbers is three times as fast to make as one written as bools, and to count.
    """
    held = torch.empty_like(rows, dtype=torch.float32)
    square = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).square_()
    largest = rows.abs().amax(-1)
    zeros = torch.eq(rows, 0, out=held).sum(-1)
    nonfinite = torch.ne(rows - rows, 0, out=held).sum(-1)
    return torch.stack([square, largest.double(), zeros.double(), nonfinite.double()])


def of_activations(out: Tensor) -> Tensor:
    """Statistics of what a module put out, host by host: float64 [3, n], in the order of `ACTIVATIONS`.

    Args:
        out: [M, n, C], best with n and C next to each other in memory.
    """
    n, width = out.shape[1], out.shape[0] * out.shape[2]
    square, zeros, largest = [], [], []
    for piece in torch.split(out.detach(), max(1, MAX_ACTIVATION_PIECE_NUMBERS // out.shape[2])):
        flat = piece.flatten(1)
        square.append(flat.to(torch.float64, copy=True).square_().sum(0))
        zeros.append(torch.eq(flat, 0, out=torch.empty_like(flat, dtype=torch.float32)).sum(0).double())
        largest.append(flat.abs().amax(0).double())
    square_n, zeros_n = (torch.stack(each).view(-1, n, out.shape[2]).sum((0, 2)) for each in (square, zeros))
    largest_n = torch.stack(largest).view(-1, n, out.shape[2]).amax((0, 2))
    return torch.stack([(square_n / width).sqrt(), largest_n, zeros_n / width])


def _where(present: Tensor, values: Tensor) -> Tensor:
    return torch.where(present, values, float("nan")).float()
