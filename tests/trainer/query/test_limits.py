"""Queries that take longer than they may, or answer more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from esper_overwatch.trainer.query.answer_size import MAX_BYTES, MAX_VALUES
from esper_overwatch.trainer.query.database import Database, QueryError, QueryLimits
from tests.trainer import journals

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    run = journals.write_run(tmp_path, "one", [journals.started("b1"), journals.round_started(1)])
    run.release()
    with closing(Database(run.events, QueryLimits(seconds=600.0, memory_bytes=10**9))) as database:
        yield database


def test_time_that_ends_before_the_query_begins_ends_it(database: Database) -> None:
    """On a busy machine DuckDB's first interrupt comes before the query and is lost."""
    database._end = time.monotonic()
    with pytest.raises(QueryError, match="the query takes longer than"):
        database.ask(ENDLESS)
    database._end = time.monotonic() + 600.0
    assert database.ask("SELECT 1").rows == [(1,)], "what comes after is not interrupted"


@pytest.mark.parametrize(
    "value",
    [
        f"range({MAX_VALUES})",
        f"[{{'a': x}} for x in range({MAX_VALUES // 2})]",
        f"map([1], [range({MAX_VALUES})])",
        f"repeat('x', {MAX_BYTES})",
    ],
)
def test_row_that_is_too_large_is_refused(database: Database, value: str) -> None:
    with pytest.raises(QueryError, match="ask for less of its lists or texts"):
        database.ask(f"SELECT {value} AS x", max_rows=10)


def test_rows_beyond_the_limits_are_left_out(database: Database) -> None:
    half = MAX_VALUES // 2 - 10
    answer = database.ask(f"SELECT i, range({half} + i * 0) AS x FROM range(5) t(i) ORDER BY i", max_rows=4)
    assert [(i, len(x)) for i, x in answer.rows] == [(0, half), (1, half)]
    assert answer.has_more


@pytest.mark.parametrize(
    "value",
    [
        "sum(i)",
        "map {'a': sum(i)}",
        "INTERVAL 1 MONTH",
        "uuid '00000000-0000-0000-0000-000000000001'",
        "TIMESTAMPTZ '2026-01-01 00:00:00+00'",
        "[true, NULL]",
        "1.50::DECIMAL(5, 2)",
        "'x'::BLOB",
    ],
)
def test_bounded_answer_has_the_same_values(database: Database, value: str) -> None:
    sql = f"SELECT {value} AS x, 1 AS x FROM range(3) t(i)"
    assert repr(database.ask(sql, max_rows=10)) == repr(database.ask(sql))
    assert database.ask(f"DESCRIBE {sql}", max_rows=10) == database.ask(f"DESCRIBE {sql}")
