"""Small tables: rows as dicts, a frame of pandas or polars, or what has `columns` and `data`."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from itertools import islice
from numbers import Integral, Real
from typing import Any, NamedTuple

from esper_overwatch.protocol.errors import PublishError

from .device_reader import is_on_device

MAX_ROWS, MAX_COLUMNS = 100, 20
MAX_CELL_CHARACTERS = 80


class TableSample(NamedTuple):
    """The first rows and columns of a table, copied when it was logged."""

    columns: list[str]
    rows: list[list[Any]]
    """Of int, float, bool, str and None."""
    size: int
    """Rows of the whole table."""


def is_table(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], Mapping)
    return hasattr(value, "columns") and (hasattr(value, "head") or hasattr(value, "data"))


def take_table(name: str, table: Any) -> TableSample:
    """A copy of its beginning.

    Raises:
        PublishError: a row is not one.
        Exception: of its own code.
    """
    columns, rows, size = _begin(table)
    if not all(isinstance(row, Mapping) for row in rows):
        raise PublishError(f"{name} = a table whose rows are not all dicts")
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    return TableSample([_cut(str(column)) for column in columns], cells, size)


def _begin(table: Any) -> tuple[list[Any], list[Any], int]:
    """(columns, rows, rows of the whole table)."""
    if isinstance(table, list | tuple):
        rows = list(table[:MAX_ROWS])
        names = dict.fromkeys(key for row in rows for key in islice(row, MAX_COLUMNS))
        return list(names)[:MAX_COLUMNS], rows, len(table)
    columns = list(islice(table.columns, MAX_COLUMNS))
    if not hasattr(table, "head"):
        rows = [dict(zip(columns, row, strict=False)) for row in table.data[:MAX_ROWS]]
        return columns, rows, len(table.data)
    head = table[columns].head(MAX_ROWS)
    return columns, head.to_dicts() if hasattr(head, "to_dicts") else head.to_dict("records"), len(table)


def _cell(value: Any) -> int | float | str | None:
    if value is None:
        return value
    if getattr(value, "shape", None) == () and not is_on_device(value):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        number = int(value)
        return number if abs(number) < 2**63 else _cut(str(number))
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str):
        return _cut(value)
    if is_on_device(value):  # its text would be waited for
        return type(value).__name__
    return _cut(reprlib.repr(value) if isinstance(value, Collection) else str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[: MAX_CELL_CHARACTERS - 1]}…"
