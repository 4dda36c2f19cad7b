"""Reading the columns of an event, which may be shorter than its run has envs or slots."""

from __future__ import annotations

from typing import Any


def at_or_none(column: list[Any] | None, index: int) -> Any:
    """A column's value, None where the column is shorter."""
    return column[index] if column is not None and 0 <= index < len(column) else None
