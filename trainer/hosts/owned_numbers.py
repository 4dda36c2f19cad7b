"""The numbers of the weights that seeds use in the masked plan, taken from all modules at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.trainer.compute.joined_rows import rows_of_numbers
from esper_overwatch.trainer.compute.stacked_ops import Init

Specs = dict[str, Init]


@dataclass(frozen=True)
class OwnedNumbers:
    """Numbers among the F of all modules, one module [n, P] after the other."""

    taken: Tensor
    """int64 [G], which are used; each tensor of the modules [k, ...] lies together."""
    back: Tensor | None = None
    """int64 [F], which of the G each is; G where it has no gradient. None where none is asked for."""
    nothing: Tensor | None = None
    """[1], the gradient 0 of the others."""

    @classmethod
    def of(cls, taken: Tensor, learners: Tensor, widths: tuple[int, ...]) -> OwnedNumbers:
        """Plan the way there and back.

        Args:
            learners: bool [T, n], whose rows learn, by module.
            widths: P of each module.
        """
        rows = rows_of_numbers(learners.shape[1], widths, taken.device)
        learns = learners.reshape(-1).index_select(0, rows)
        order = torch.arange(len(taken), device=taken.device)
        back = torch.zeros_like(learns, dtype=torch.int64).scatter_(0, taken, order)
        return cls(taken, back.masked_fill_(~learns, len(taken)), torch.zeros(1, device=taken.device))


def find_numbers(n: int, modules: Sequence[tuple[Specs, NDArray[np.int64]]]) -> NDArray[np.int64]:
    """`OwnedNumbers.taken` for n hosts, given the tensors of each module and the rows [k] that are used."""
    found, start = [np.zeros(0, dtype=np.int64)], 0
    for specs, rows in modules:
        width = sum(spec.count for spec in specs.values())
        at = start
        for spec in specs.values():
            found.append((at + rows[:, None] * width + np.arange(spec.count)).ravel())
            at += spec.count
        start += n * width
    return np.concatenate(found)


def take_numbers(
    numbers: OwnedNumbers, shapes: Sequence[tuple[int, ...]], weights: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Take tensors of these shapes, one behind the other, from weights [n, P]."""
    made: tuple[Tensor, ...] = _TakeNumbers.apply(numbers, shapes, *weights)  # type: ignore[no-untyped-call]
    return made


class _TakeNumbers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, numbers: OwnedNumbers, shapes: Sequence[tuple[int, ...]], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.numbers, ctx.shapes = numbers, [weight.shape for weight in weights]
        taken = torch.cat([weight.reshape(-1) for weight in weights]).index_select(0, numbers.taken)
        parts = torch.split(taken, [torch.Size(shape).numel() for shape in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given = torch.cat([*(grad.reshape(-1) for grad in grads), ctx.numbers.nothing])
        found = given.index_select(0, ctx.numbers.back)
        parts = torch.split(found, [shape.numel() for shape in ctx.shapes])
        return None, None, *(part.view(shape) for part, shape in zip(parts, ctx.shapes, strict=True))
