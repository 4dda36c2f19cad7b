"""Answers of the daemon as lines that a person reads."""

from __future__ import annotations

import time
from typing import Any

MAX_RESULT_COLUMNS = 110
_SINCE_2001 = 10**15
"""A whole number from here on is a time of the wall in microseconds."""


def format_result(value: dict[str, Any], *, indent: int = 0) -> list[str]:
    """Lines with a key and its value; a longer group has a line for each of its keys.

    Args:
        indent: columns before the keys.
    """
    lines = []
    key_width = max([16, *map(len, value)])
    for key, item in value.items():
        start, phrase = f"{' ' * indent}{key:<{key_width}}", _phrase_of(item)
        if phrase is not None and (
            len(start) + len(phrase) < MAX_RESULT_COLUMNS or not isinstance(item, dict | list)
        ):
            lines.append(f"{start} {phrase}")
            continue
        lines.append(start.rstrip())
        if isinstance(item, dict):
            lines += format_result(item, indent=indent + 2)
            continue
        if table := _table_of(item, MAX_RESULT_COLUMNS - indent - 2):
            lines += [" " * (indent + 2) + row for row in table]
            continue
        for one in item:
            part = _phrase_of(one)
            lines += format_result(one, indent=indent + 2) if part is None else [" " * (indent + 2) + part]
    return lines


def _table_of(rows: list[Any], columns: int) -> list[str]:
    """Groups with the same keys as a table with these for a header; empty where it is none, or too wide."""
    if len(rows) < 2 or any(not isinstance(row, dict) or [*row] != [*rows[0]] for row in rows):
        return []
    cells = [[*rows[0]], *([_phrase_of(value) for value in row.values()] for row in rows)]
    if any(cell is None for row in cells for cell in row):
        return []
    widths = [max(len(cell or "") for cell in column) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * len(widths) > columns:
        return []
    return ["  ".join(map(str.ljust, map(str, row), widths)).rstrip() for row in cells]


def _phrase_of(item: Any) -> str | None:
    """A value in words: `life 8, metric 275` for a group of single words; None for a group of more."""
    if item is None or item == "" or item == [] or item == {}:
        return "--"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int) and item >= _SINCE_2001:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item / 1e6))
    if not isinstance(item, dict | list):
        return str(item)
    parts = [_phrase_of(one) for one in (item.values() if isinstance(item, dict) else item)]
    if any(part is None or " " in part for part in parts):
        return None
    names = [f"{key} " for key in item] if isinstance(item, dict) else [""] * len(item)
    return ", ".join(f"{name}{part}" for name, part in zip(names, parts, strict=True))
