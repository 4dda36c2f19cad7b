"""A run's tables in DuckDB, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import EsperError
from protocol.journal import read

from .tables import Columns, Row, Tables
from .timeline import Timeline

try:
    import duckdb
    import pyarrow
except ImportError as error:
    _missing: str | None = error.name
else:
    _missing = None


class QueryError(EsperError):
    """The SQL is wrong; the message is DuckDB's, in one line."""

    exit_code = 5


class ExtraMissing(EsperError):
    """A package of the extra `export` is not installed."""

    exit_code = 9


@dataclass(frozen=True)
class Result:
    """What a query came to."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class Database:
    """The tables of a journal.

    Args:
        journal: of a run, live or not; lines that are no events are passed over.

    Raises:
        ExtraMissing: DuckDB or Arrow is not installed.
        FolderError: the journal cannot be read.
    """

    def __init__(self, journal: Path) -> None:
        if _missing is not None:
            raise ExtraMissing(f"{_missing} is not installed; run: pip install 'esper-overwatch[export]'")
        self.damaged = 0
        """Lines passed over."""
        timeline = Timeline(read(journal, on_bad=lambda *_: None))
        tables = Tables(timeline.valid(read(journal, on_bad=self._passed_over)))
        self.columns = tables.columns
        self._connection = duckdb.connect(config={"python_enable_replacements": "false"})
        for name, columns in tables.columns.items():
            self._connection.register(name, _arrow(columns, tables.rows[name]))

    def ask(self, sql: str) -> Result:
        """Run a query.

        Raises:
            QueryError: DuckDB refuses it.
        """
        try:
            cursor = self._connection.execute(sql)
            if cursor is None or not cursor.description:  # there was no statement
                return Result([], [])
            return Result([column[0] for column in cursor.description], cursor.fetchall())
        except duckdb.Error as error:
            raise QueryError(_one_line(str(error))) from None

    def _passed_over(self, *_: object) -> None:
        self.damaged += 1


def _arrow(columns: Columns, rows: Sequence[Row]) -> Any:
    types = {
        "DOUBLE": pyarrow.float64(),
        "BIGINT": pyarrow.int64(),
        "BOOLEAN": pyarrow.bool_(),
        "VARCHAR": pyarrow.string(),
        "TIMESTAMP": pyarrow.timestamp("us"),
    }
    by_column = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pyarrow.array(values, types[kind]) for values, kind in zip(by_column, columns.values(), strict=True)
    ]
    return pyarrow.table(arrays, names=list(columns))


def _one_line(message: str) -> str:
    """DuckDB's message without the picture of the query."""
    return " ".join(message.partition("\nLINE ")[0].split())
