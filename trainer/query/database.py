"""Tables of runs in DuckDB, in memory."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.extras import missing_extra
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import oldest_numbers

from .views import DESCRIPTIONS

try:
    import duckdb
    import pyarrow

    from .answer_size import MAX_BYTES, MAX_VALUES, count_that_fit
    from .event_columns import SCHEMAS
    from .event_views import NAMES, Boots
    from .part_cache import JournalTables, read_tables
    from .views import views
except ImportError as error:
    _missing: ImportError | None = error
else:
    _missing = None


_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_CLOSED = ("SET TimeZone = 'UTC'", "SET enable_external_access = false", "SET lock_configuration = true")
"""SQL that somebody pastes reads and writes no file, installs nothing, and cannot open that again."""
INTERRUPT_SECONDS = 0.05
"""Interval at which a query whose time is up is interrupted again, until it ends."""


class QueryError(EsperError):
    """The SQL is wrong; the message is DuckDB's, in one line."""

    exit_code = 5


@dataclass(frozen=True)
class Result:
    """Columns and rows of a query."""

    columns: list[str]
    """No name twice."""
    rows: list[tuple[Any, ...]]
    has_more: bool = False
    """Rows were left out."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits of reading the journal and of one query; answers are bounded as in `answer_size`."""

    seconds: float
    """For both together."""
    memory_bytes: int
    """Memory of DuckDB's tables and operators, without what its functions generate (`range`, `repeat`); it
    then writes no temporary files either."""


class SqlViews:
    """Views in memory that SQL is asked of; a subclass makes them.

    Args:
        limits: None where whoever asks may wait.

    Attributes:
        descriptions: of the views, one line each.

    Raises:
        MissingExtra: DuckDB or Arrow is not installed.
    """

    descriptions: Mapping[str, str]

    def __init__(self, limits: QueryLimits | None = None) -> None:
        if _missing is not None:
            raise missing_extra(_missing) or _missing
        self._limits = limits
        self._end = None if limits is None else time.monotonic() + limits.seconds
        self._connection = duckdb.connect(config=_CONFIG)

    def _close_off(self) -> None:
        """Let SQL reach nothing but the views; called once, before the first question."""
        if self._limits is not None:
            self._connection.execute(f"SET memory_limit = '{self._limits.memory_bytes}B'")
            self._connection.execute("SET temp_directory = ''")
            self._connection.execute("SET arrow_lossless_conversion = true")
        for statement in _CLOSED:
            self._connection.execute(statement)

    def ask(self, sql: str, max_rows: int | None = None) -> Result:
        """Run a query.

        Args:
            sql: what to ask.
            max_rows: how many rows to give; None = all.

        Raises:
            QueryError: DuckDB refuses it, or it takes longer or has a larger row than the limits allow.
        """
        with self._alarm():
            if self._limits is not None and max_rows is not None:
                return self._ask_bounded(sql, max_rows)
            cursor = self._connection.execute(sql)
            if cursor is None or not cursor.description:  # there was no statement
                return Result([], [])
            columns = _number_repeats([column[0] for column in cursor.description])
            if max_rows is None:
                return Result(columns, cursor.fetchall())
            rows = cursor.fetchmany(max_rows + 1)
            return Result(columns, rows[:max_rows], has_more=len(rows) > max_rows)

    def _ask_bounded(self, sql: str, max_rows: int) -> Result:
        """Rows are measured as columns before they become Python objects, which can be ten times as large."""
        relation = self._connection.sql(sql)
        if relation is None:  # there was no statement
            return Result([], [])
        table = relation.limit(max_rows + 1).to_arrow_table()
        count = count_that_fit(table[:max_rows])
        if not count and table.num_rows:
            raise QueryError(
                f"a row of the answer has more than {MAX_VALUES:,} values or {MAX_BYTES >> 20} MiB; "
                "ask for less of its lists or texts"
            )
        rows = self._connection.from_arrow(table[:count]).fetchall()
        return Result(_number_repeats(relation.columns), rows, has_more=table.num_rows > count)

    @contextmanager
    def _alarm(self) -> Iterator[None]:
        """DuckDB's errors in one line; what takes longer than the limits is interrupted."""
        over = threading.Event()
        alarm = threading.Thread(target=self._interrupt_late, args=(over,), daemon=True)
        if self._end is not None:
            alarm.start()
        try:
            yield
        except duckdb.InterruptException:
            raise self._too_slow("the query") from None
        except duckdb.Error as error:
            why = _one_line(str(error))
            if why.startswith("Catalog Error: Table"):
                why += f" The views are {', '.join(self.descriptions)}"
            raise QueryError(why) from None
        finally:
            over.set()
            if self._end is not None:
                alarm.join()

    def _interrupt_late(self, over: threading.Event) -> None:
        """Interrupt until the query is over: DuckDB forgets an interrupt that comes before it has begun."""
        assert self._end is not None
        wait = max(0.0, self._end - time.monotonic())
        while not over.wait(wait):
            self._connection.interrupt()
            wait = INTERRUPT_SECONDS

    @functools.cached_property
    def columns(self) -> dict[str, dict[str, str]]:
        """The SQL type of each column of each view."""
        described = {name: self.ask(f"DESCRIBE {name}").rows for name in self.descriptions}
        return {name: {row[0]: row[1] for row in rows} for name, rows in described.items()}

    def close(self) -> None:
        """Release the tables."""
        self._connection.close()

    def _in_time(self, events: Iterator[Event]) -> Iterator[Event]:
        """Pass events through; raises an error once the limits' time has passed."""
        for event in events:
            if self._end is not None and time.monotonic() > self._end:
                raise self._too_slow("reading the journal")
            yield event

    def _too_slow(self, what: str) -> QueryError:
        assert self._limits is not None
        return QueryError(
            f"{what} takes longer than {self._limits.seconds:g} s; "
            "ask for less, or use esper-daemon query, which has no limit"
        )


class Database(SqlViews):
    """The tables of a journal.

    Args:
        journal: of a run, live or not; what is damaged is skipped.
        limits: None where whoever asks may wait.

    Raises:
        MissingExtra: DuckDB or Arrow is not installed.
        FolderError: the journal cannot be read.
        QueryError: reading it takes longer than the limits allow.
    """

    descriptions = DESCRIPTIONS

    def __init__(self, journal: Path, limits: QueryLimits | None = None) -> None:
        super().__init__(limits)
        tables = read_tables(journal, self._in_time)
        self.damage = report_damage(journal, tables)
        """Parts that could not be read."""
        self._create_views(tables)
        self._close_off()

    def _create_views(self, tables: JournalTables) -> None:
        boots = Boots(tables.summaries)
        connection = self._connection
        connection.register("boots_", pyarrow.Table.from_pylist(boots.names(), schema=NAMES))
        connection.execute("CREATE SCHEMA events")
        for table in SCHEMAS:
            connection.register(f"_{table}", tables.dataset(table))
            connection.execute(boots.view(table))
        components = [name for summary in tables.summaries for name in summary.components]
        ((told,),) = connection.sql('SELECT max(ctx_round) FROM events."seed.ended"').fetchall()
        for name, sql in views(list(dict.fromkeys(components)), told or 0).items():
            connection.execute(f"CREATE VIEW {name} AS {sql}")


def report_damage(journal: Path, tables: JournalTables) -> DamageReport:
    """What could not be read of a journal."""
    report = DamageReport()
    report.expect(oldest_numbers(journal))
    for summary in tables.summaries:
        report.add_places(summary.places, summary.num_places)
        for stream, first, last in summary.numbers:
            report.add_numbers(stream, first, last)
    return report


def _number_repeats(names: Sequence[str]) -> list[str]:
    """The second `a` becomes `a_1`, the third `a_2`; what is another column's name is left out."""
    taken, numbered = set(names), list[str]()
    for name in names:
        new = name
        if name in numbered:
            new = next(one for n in itertools.count(1) if (one := f"{name}_{n}") not in taken)
            taken.add(new)
        numbered.append(new)
    return numbered


def _one_line(message: str) -> str:
    """DuckDB's message without the picture of the query."""
    return " ".join(message.partition("\nLINE ")[0].split())
