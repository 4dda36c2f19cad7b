"""Answers of SQL as tables, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from esper_overwatch.protocol.codec.text import clean_text

from .output import format_table


def plain_value(value: Any) -> Any:
    """Numbers that JSON lacks as words, as everywhere on the wire."""
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Decimal):  # DuckDB's type of a literal such as 0.5
        return float(value)
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value.isoformat() if isinstance(value, datetime) else value


def csv_lines(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Lines of CSV, one per row: a line break in a cell is an escape, as are other control characters."""
    for row in (columns, *rows):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(
            [clean_text(value) if isinstance(value, str) else value for value in row]
        )
        yield out.getvalue()


def table_lines(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Aligned columns, numbers to the right; NULL is empty."""
    numeric = {
        i for i in range(len(columns)) if any(isinstance(row[i], int | float | Decimal) for row in rows)
    }
    return format_table(columns, [[_cell(value) for value in row] for row in rows], right_aligned=numeric)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # without the sign of a zero
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return str(value)
