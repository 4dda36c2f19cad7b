"""What `esper-daemon query` prints."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from math import isfinite
from typing import Any, Literal

from protocol.runs import find_run

from .database import Database, Result

Format = Literal["table", "json", "csv"]


def answer(run: str | None, sql: str, form: Format) -> str:
    """The result of a query over a run's journal.

    Raises:
        EsperError: no such run, a package is missing, or the SQL is wrong.
    """
    result = Database(find_run(run).path / "events.jsonl").ask(sql)
    if form == "csv":
        return _csv(result)
    return _json(result) if form == "json" else _table(result)


def tables(run: str | None, form: Format) -> str:
    """The views and their columns, as this run has them."""
    columns = Database(find_run(run).path / "events.jsonl").columns
    if form == "json":
        return json.dumps(columns)
    rows = [(view, name, kind) for view, of in columns.items() for name, kind in of.items()]
    result = Result(["view", "column", "type"], rows)
    return _csv(result) if form == "csv" else _table(result)


def _json(result: Result) -> str:
    rows = [dict(zip(result.columns, map(_plain, row), strict=True)) for row in result.rows]
    return json.dumps(rows, default=str)


def _plain(value: Any) -> Any:
    """Numbers that JSON lacks as words, as everywhere on the wire."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value.isoformat() if isinstance(value, datetime) else value


def _csv(result: Result) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows(result.rows)
    return out.getvalue().rstrip("\n")


def _table(result: Result) -> str:
    """Aligned columns, numbers to the right; NULL is empty."""
    cells = [[_cell(value) for value in row] for row in result.rows]
    widths = [max(map(len, column)) for column in zip(result.columns, *cells, strict=True)]
    numeric = [
        any(isinstance(row[i], int | float) for row in result.rows) for i in range(len(result.columns))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [result.columns, *cells]
    ]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # without the sign of a zero
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return str(value)
