"""Reading the columns of an event, which may be shorter than its run has envs or slots."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any


def at_or_none(column: list[Any] | None, index: int) -> Any:
    """A column's value, None where the column is shorter."""
    return column[index] if column is not None and 0 <= index < len(column) else None


def zip_columns(first: list[Any], *others: list[Any] | None) -> Iterator[tuple[Any, ...]]:
    """The rows of an event's columns: as many as the first has, None where another one is shorter."""
    return islice(zip_longest(first, *(column or () for column in others)), len(first))
