"""Gradient statistics of stacked parameters: everything per row (host or seed), nothing per env.

Sums of squares are taken in float64, where they cannot overflow. Collectors look at a tensor piece by piece,
since torch makes a float64 copy of whatever it sums up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from protocol.thresholds import THRESHOLDS

VANISHED = 1e-7
"""A tensor whose gradient norm is below this has none to speak of."""
EXPLODED = THRESHOLDS["gradient_exploding"].critical
PIECE = 2048
"""Numbers of a row that a collector looks at together, of all rows: 512 KiB as float64 where there are 32."""


def row_norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of each row of each tensor: float64 [T, n] from T tensors [n, ...]."""
    return torch.stack(
        [torch.linalg.vector_norm(t.reshape(t.shape[0], -1), dim=1, dtype=torch.float64) for t in tensors]
    )


def pieces(tensor: Tensor, most: int = PIECE) -> Iterator[Tensor]:
    """A tensor [n, ...] as matrices [n, at most `most`]; nothing larger is ever copied."""
    width = tensor[0].numel()
    if width <= most:
        yield tensor.reshape(tensor.shape[0], -1)
        return
    dim = max(range(1, tensor.dim()), key=lambda d: tensor.shape[d])
    length = tensor.shape[dim]
    step = max(1, length * most // width)
    for start in range(0, length, step):
        yield from pieces(tensor.narrow(dim, start, min(step, length - start)), most)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def collected_norms(tensors: Sequence[Tensor]) -> Tensor:
    """`row_norms` in pieces: slower where rows are long, without a copy of them."""
    return torch.stack([_norm(t) for t in tensors])


def _norm(tensor: Tensor) -> Tensor:
    """float64 [n]. Squares of float32 numbers have room enough in float64, so those of pieces just add up."""
    if tensor[0].numel() <= PIECE:
        return row_norms([tensor])[0]
    square = torch.zeros(len(tensor), dtype=torch.float64, device=tensor.device)
    for piece in pieces(tensor):
        square += row_norms([piece])[0].square_()
    return square.sqrt_()


def norm_and_health(norms: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """L2 norm over the tensors of a module, and the share of them with a usable gradient.

    A gradient is usable where its norm is finite, has not vanished and has not exploded.

    Args:
        norms: [T, n] as `row_norms` gives them.
        present: bool [T, n], which tensors a row has.

    Returns:
        Two float32 [n]; NaN where a row has none.
    """
    count = present.sum(0)
    usable = present & (norms >= VANISHED) & (norms <= EXPLODED)
    total = torch.linalg.vector_norm(norms.masked_fill(~present, 0.0), dim=0)
    nothing = count == 0
    return (
        total.masked_fill(nothing, float("nan")).float(),
        (usable.sum(0) / count.clamp_min(1)).masked_fill(nothing, float("nan")).float(),
    )


@dataclass
class LayerStatistics:
    """Of one epoch's last step: L layers by N envs, float32; NaN where an env has no such layer."""

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

    def with_outputs(self, outputs: dict[str, Summary], present: Tensor) -> LayerStatistics:
        """With a row beneath for what each module put out.

        Args:
            outputs: summaries [1, n] by name.
            present: bool [A, n], where an env has the module and was asked for.
        """
        rows = list(outputs.values())
        made = {
            "activation_rms": [row.rms for row in rows],
            "activation_max": [row.largest for row in rows],
            "activation_zero_fraction": [row.zero_fraction for row in rows],
        }
        columns = {}
        for column in (f.name for f in fields(self) if f.name != "names"):
            above: Tensor = getattr(self, column)
            beneath = torch.cat(made[column]) if column in made else present.double() * float("nan")
            columns[column] = torch.cat([above, _where(present, beneath)])
        return LayerStatistics(names=[*self.names, *outputs], **columns)

    @classmethod
    def joined(cls, parts: Sequence[LayerStatistics]) -> LayerStatistics:
        """The statistics of several groups, side by side; a layer that a group lacks is NaN there."""
        names = list(dict.fromkeys(name for part in parts for name in part.names))
        columns = [f.name for f in fields(cls) if f.name != "names"]
        merged = {column: torch.cat([p._on(names, column) for p in parts], dim=1) for column in columns}
        return cls(names=names, **merged)

    def _on(self, names: list[str], column: str) -> Tensor:
        values: Tensor = getattr(self, column)
        out = values.new_full((len(names), values.shape[1]), float("nan"))
        out[[names.index(name) for name in self.names]] = values
        return out


@torch.compiler.disable  # type: ignore[untyped-decorator]
def layer_statistics(
    names: list[str], gradients: Sequence[Tensor], weights: Sequence[Tensor], present: Tensor
) -> LayerStatistics:
    """Statistics of each layer of each env.

    Args:
        names: of the L layers.
        gradients: L tensors [n, ...].
        weights: L tensors [n, ...].
        present: bool [L, n], where an env has the layer and was asked for.
    """
    rows = summary(gradients)
    absent = torch.full(present.shape, float("nan"), device=present.device)
    return LayerStatistics(
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
class Summary:
    """Of T tensors [n, ...] row by row: float64 [T, n]."""

    norm: Tensor
    rms: Tensor
    largest: Tensor
    """Of the magnitudes; NaN where there is one."""
    zero_fraction: Tensor
    nonfinite: Tensor
    """Count of NaN and infinities."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def summary(tensors: Sequence[Tensor], most: int = PIECE) -> Summary:
    """Look at every number of some tensors, in pieces of rows of so many numbers at most.

    Copies nothing to the device, as that would wait for it.
    """
    rows = [_row_summary(t.detach(), most) for t in tensors]
    return Summary(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _row_summary(tensor: Tensor, most: int) -> tuple[Tensor, ...]:
    """The fields of `Summary`, [n] each."""
    count = tensor[0].numel()
    square, largest, zeros, nonfinite = tensor.new_zeros((4, len(tensor)), dtype=torch.float64)
    for piece in pieces(tensor, most):
        square += row_norms([piece])[0].square_()
        largest = torch.maximum(largest, piece.abs().amax(1).double())
        zeros += (piece == 0).sum(1)
        nonfinite += (~piece.isfinite()).sum(1)
    return square.sqrt(), (square / count).sqrt(), largest, zeros / count, nonfinite


def _where(present: Tensor, values: Tensor) -> Tensor:
    return torch.where(present, values, float("nan")).float()
