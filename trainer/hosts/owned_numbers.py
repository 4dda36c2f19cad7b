"""The numbers of a slot's weights that its seeds use in the masked plan, taken from all modules at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters

Specs = dict[str, Init]


@dataclass(frozen=True)
class OwnedNumbers:
    """Numbers among the F of a slot's modules, one module [n, P] after the other."""

    taken: Tensor
    """int64 [G], which are used; each tensor of the modules [k, ...] lies together."""
    back: Tensor
    """int64 [F], which of the G each is; G where it has no gradient."""
    nothing: Tensor
    """[1], the gradient 0 of the others."""

    @classmethod
    def of(cls, taken: Tensor, learners: Sequence[Tensor], widths: Sequence[int]) -> OwnedNumbers:
        """Plan the way there and back.

        Args:
            learners: bool [n, 1] for each module, whose rows learn.
            widths: P of each module.
        """
        pairs = zip(learners, widths, strict=True)
        idle = torch.cat([(~rows).expand(-1, width).reshape(-1) for rows, width in pairs])
        order = torch.arange(len(taken), device=taken.device)
        back = torch.zeros_like(idle, dtype=torch.int64).scatter_(0, taken, order)
        return cls(taken, back.masked_fill_(idle, len(taken)), torch.zeros(1, device=taken.device))


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
    numbers: OwnedNumbers, modules: Sequence[tuple[Specs, int]], weights: Sequence[Tensor]
) -> list[Parameters]:
    """Take the tensors [k, ...] of each module, given k, from weights [n, P]."""
    shapes = [(k, *spec.shape) for specs, k in modules for spec in specs.values()]
    made = iter(_TakeNumbers.apply(numbers, shapes, *weights))  # type: ignore[no-untyped-call]
    return [{name: next(made) for name in specs} for specs, _ in modules]


class _TakeNumbers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, numbers: OwnedNumbers, shapes: list[tuple[int, ...]], *weights: Tensor
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
