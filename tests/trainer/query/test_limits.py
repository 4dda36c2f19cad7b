"""Queries that take longer than they may."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.trainer import journals
from trainer.query.database import Database, QueryError, QueryLimits

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"


def test_time_that_ends_before_the_query_begins_ends_it(tmp_path: Path) -> None:
    """On a busy machine DuckDB's first interrupt comes before the query and is lost."""
    run = journals.write_run(tmp_path, "one", [journals.started("b1"), journals.round_started(1)])
    run.release()
    limits = QueryLimits(seconds=600.0, memory_bytes=10**9)
    with closing(Database(run.events, limits)) as database:
        database._end = time.monotonic()
        with pytest.raises(QueryError, match="the query takes longer than"):
            database.ask(ENDLESS)
        database._end = time.monotonic() + 600.0
        assert database.ask("SELECT 1").rows == [(1,)], "what comes after is not interrupted"
