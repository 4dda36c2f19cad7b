"""A run's tables in DuckDB, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import EsperError, MissingExtra
from protocol.journal.damage import DamageReport

from .tables import Columns, Row, Tables
from .timeline import valid_events

try:
    import duckdb
    import pyarrow
except ImportError as error:
    _missing: str | None = error.name
else:
    _missing = None


_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_CLOSED = ("SET TimeZone = 'UTC'", "SET enable_external_access = false", "SET lock_configuration = true")
"""SQL that somebody pastes reads and writes no file, installs nothing, and cannot open that again."""


class QueryError(EsperError):
    """The SQL is wrong; the message is DuckDB's, in one line."""

    exit_code = 5


@dataclass(frozen=True)
class Result:
    """Columns and rows of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class Database:
    """The tables of a journal.

    Args:
        journal: of a run, live or not; what is damaged is skipped.

    Raises:
        MissingExtra: DuckDB or Arrow is not installed.
        FolderError: the journal cannot be read.
    """

    def __init__(self, journal: Path) -> None:
        if _missing is not None:
            raise MissingExtra(f"{_missing} is not installed; run: pip install 'esper-overwatch[export]'")
        self.damage = DamageReport()
        """What could not be read."""
        tables = Tables(valid_events(journal, self.damage))
        self.columns = tables.columns
        self._connection = duckdb.connect(config=_CONFIG)
        for name, columns in tables.columns.items():
            self._connection.register(name, _arrow(columns, tables.rows[name]))
        for statement in _CLOSED:
            self._connection.execute(statement)

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
