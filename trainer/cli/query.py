"""`esper-daemon query`: SQL over a run's journal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

import click

from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .options import JSON, RUN
from .output import exit_on_damage, format_table, print_json, print_lines
from .run_argument import CommandAfterRun, RunArgument


@click.command(cls=CommandAfterRun)
@RUN
@click.argument("sql", required=False)
@click.option("--views", "--tables", "tables", is_flag=True, help="List the views and their columns.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@JSON
def query(run: RunArgument, sql: str | None, tables: bool, as_csv: bool, as_json: bool) -> None:
    """Query the journal of RUN, live or ended, in SQL (DuckDB)."""
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    run.run_remotely_if_addressed()
    if tables != (sql is None) or not (tables or run.address):
        raise click.UsageError('give RUN and "SQL", or --views')
    from esper_overwatch.trainer.query.database import Database
    from esper_overwatch.trainer.query.views import DESCRIPTIONS

    database = Database(find_run(run.address).path / EVENTS_FILE)
    if sql is not None:
        result = database.ask(sql)
        columns, rows = result.columns, result.rows
    else:
        columns = ["view", "column", "type", "a row for"]
        rows = [
            (view, name, kind, "" if i else DESCRIPTIONS[view])
            for view, of in database.columns.items()
            for i, (name, kind) in enumerate(of.items())
        ]
    if as_json and sql is None:
        print_json(database.columns)
    elif as_json:
        print_json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
    else:
        print_lines(_csv(columns, rows) if as_csv else _table(columns, rows))
    exit_on_damage(database.damage)


def _plain(value: Any) -> Any:
    """Numbers that JSON lacks as words, as everywhere on the wire."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):  # DuckDB's type of a literal such as 0.5
        return float(value)
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value.isoformat() if isinstance(value, datetime) else value


def _csv(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Lines of CSV, one per row: a line break in a cell is an escape, as are other control characters."""
    for row in (columns, *rows):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(
            [clean_text(value) if isinstance(value, str) else value for value in row]
        )
        yield out.getvalue()


def _table(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[str]:
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
