"""Rows of several tensors [n, ...] at once: on a GPU in a few operations, not some for each tensor.

A large tensor goes alone: an operation more costs less than a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

import torch
from torch import Tensor

from .stacked_ops import expand_rows
from .torch_private import copy_each_, memory_key

P = ParamSpec("P")
MAX_JOINED_NUMBERS = 1 << 22
"""In a tensor that is joined with others."""


def portions(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places of the tensors that are treated together: on a GPU small ones of a dtype, others each alone."""
    found: dict[torch.dtype | int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        is_small = tensor.device.type != "cpu" and tensor.numel() <= MAX_JOINED_NUMBERS
        found.setdefault(tensor.dtype if is_small else place, []).append(place)
    return list(found.values())


def made_once(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Keep what a function makes, for each stream: on another one it may not be ready.

    The first call comes before a graph that reads it is captured; the last argument is the device.
    """
    made: dict[tuple[object, ...], Tensor] = {}

    def get(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        device = args[-1]
        assert isinstance(device, torch.device)
        key = (torch.cuda.current_stream(device) if device.type == "cuda" else None, *args)
        if key not in made:
            made[key] = make(*args, **kwargs)
        return made[key]

    return get


@made_once
def rows_of_numbers(n: int, widths: tuple[int, ...], device: torch.device) -> Tensor:
    """The row of each number of T tensors [n, P], one behind the other, among their T*n rows: int32."""
    rows = torch.arange(len(widths) * n, dtype=torch.int32, device=device).view(-1, n, 1)
    each = zip(rows, widths, strict=True)
    return torch.cat([of.expand(-1, width).reshape(-1) for of, width in each])


def rows_at(rows: Tensor, places: Sequence[int]) -> Tensor:
    """Of some rows [T, n] those at ascending places."""
    first, last = places[0], places[-1]
    if last - first + 1 == len(places):
        return rows[first : last + 1]
    return torch.stack([rows[i] for i in places])


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Their numbers, one tensor behind the other; no copy where they lie so, as what `parted` gives does."""
    memory, start, count = memory_key(tensors[0])[0], tensors[0].storage_offset(), 0
    for t in tensors:
        if memory_key(t)[:2] != (memory, start + count) or not t.is_contiguous():
            return torch.cat([t.reshape(-1) for t in tensors])
        count += t.numel()
    return tensors[0].as_strided((count,), (1,))


def parted(numbers: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of these shapes again."""
    parts = torch.split(numbers, [t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def spread(rows: Tensor, like: Sequence[Tensor]) -> Tensor:
    """A number of each of their T*n rows, [T, n] or for all tensors [n], at each of their joined numbers."""
    widths = tuple(t[0].numel() for t in like)
    each = rows.expand(len(like), -1).reshape(-1)
    return each.index_select(0, rows_of_numbers(rows.shape[-1], widths, rows.device))


@torch.no_grad()
def copy_rows_(targets: Sequence[Tensor], sources: Sequence[Tensor], where: Tensor) -> None:
    """Copy the rows bool [n] of each source [n, ...] into its target, of the same dtype."""
    for places in portions(targets):
        mine, theirs = ([part[i].detach() for i in places] for part in (targets, sources))
        if len(mine) == 1:
            torch.where(expand_rows(where, mine[0]), theirs[0], mine[0], out=mine[0])
        else:
            copy_each_(mine, parted(torch.where(spread(where, mine), joined(theirs), joined(mine)), mine))


@torch.no_grad()
def zero_rows_(targets: Sequence[Tensor], where: Tensor) -> None:
    """Zero rows of T tensors [n, ...]: bool [n] in all of them, or [T, n]."""
    for places in portions(targets):
        mine = [targets[i] for i in places]
        rows = rows_at(where.expand(len(targets), -1), places)
        if len(mine) == 1:
            mine[0].masked_fill_(expand_rows(rows, mine[0]), 0.0)
        else:
            copy_each_(mine, parted(joined(mine).masked_fill_(spread(rows, mine), 0.0), mine))
