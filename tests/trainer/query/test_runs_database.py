"""SQL over all runs: what each run's own views have, under its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.journal.reader import JournalPart
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.trainer.query.database import Database, QueryError, QueryLimits
from esper_overwatch.trainer.query.part_cache import MIN_KEPT_BYTES
from esper_overwatch.trainer.query.runs_database import RunsDatabase
from tests.trainer.command import esper
from tests.trainer.journals import at, epoch, round_finished, round_started, stage, started, write_run

VIEWS = ("scalars", "rounds", "seeds", "anomalies")


def write_trainings(home: Path) -> None:
    """Two trainings, the second of which was resumed and plays a round anew."""
    first = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed="r1e0n0s0"),
        epoch(1, 1),
        stage(at(1, 1, 0), "r0c0", "HOLDING", "FOSSILIZED", contribution=0.25, seed="r1e0n0s0"),
        round_finished(1, 2),
    ]
    write_run(home, "one", first).release()
    again = [started("b2", resumed_round=0), round_started(1), epoch(1, 1), round_finished(1, 2)]
    write_run(home, "two", [*first, *again]).release()


def test_each_view_is_the_views_of_the_runs(home: Path) -> None:
    write_trainings(home)
    for name in ("loop-a", "loop-b"):
        with publish(name, config={"lr": 0.1}) as run:
            run.log({"loss": 1.0, "acc": float("nan")}, step=1)
            run.log({"loss": 0.5}, step=2)
    with closing(RunsDatabase()) as everything:
        for view in VIEWS:
            for run in ("one", "two", "loop-a", "loop-b"):
                with closing(Database(home / "runs" / run / "events.jsonl")) as own:
                    expected = own.ask(f"SELECT * FROM {view}").rows
                found = everything.ask(f"SELECT * EXCLUDE (run) FROM {view} WHERE run = '{run}'").rows
                assert sorted(map(repr, found)) == sorted(map(repr, expected)), (view, run)
        assert everything.ask("SELECT run, count(*) FROM Seeds GROUP BY ALL ORDER BY ALL").rows == [
            ("one", 1)
        ]
        best = (
            "SELECT run, min(value) FROM scalars JOIN runs USING (run) "
            "WHERE (config->'lr')::DOUBLE < 1 AND name = 'loss' GROUP BY ALL ORDER BY ALL"
        )
        assert everything.ask(best).rows == [("loop-a", 0.5), ("loop-b", 0.5)]
        assert list(everything.columns) == ["runs", *VIEWS]


def test_without_runs_the_views_are_empty(home: Path) -> None:
    with closing(RunsDatabase()) as everything:
        for view in ("runs", *VIEWS):
            assert everything.ask(f"SELECT * FROM {view}").rows == []


def test_sql_reaches_nothing_but_the_views(home: Path) -> None:
    write_trainings(home)
    limits = QueryLimits(seconds=600.0, memory_bytes=10**9)
    with closing(RunsDatabase(limits=limits)) as everything:
        for sql in ("SELECT * FROM read_text('/etc/passwd')", "COPY runs TO 'x.csv'", "SET threads = 1"):
            with pytest.raises(QueryError):
                everything.ask(sql)
        assert len(everything.ask("SELECT * FROM rounds", max_rows=10).rows) == 2


def test_ended_runs_are_kept_in_columns_until_they_go_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    original = JournalPart.events

    def watched(self: JournalPart, on_bad: object) -> Iterator[object]:
        decoded.append(self._file.parent.name)
        return original(self, on_bad)  # type: ignore[arg-type]

    monkeypatch.setattr(JournalPart, "events", watched)
    told = [started("b1"), *((ev.Scalars(values={"loss": float(i)}, step=i), at(0, 0)) for i in range(900))]
    for name in ("long", "other"):
        run = write_run(home, name, told)
        assert run.events.stat().st_size > MIN_KEPT_BYTES
        run.release()
    count = "SELECT run, count(*) FROM scalars GROUP BY ALL ORDER BY ALL"
    for expected in (["long", "other"], []):
        decoded.clear()
        with closing(RunsDatabase()) as everything:
            assert everything.ask(count).rows == [("long", 900), ("other", 900)]
        assert sorted(decoded) == expected
    write_run(home, "long", told[1:3]).release()
    with closing(RunsDatabase()) as everything:
        assert everything.ask(count).rows == [("long", 902), ("other", 900)]
    assert decoded == ["long"]
    assert len([*(home / "runs" / "long" / "cache").glob("*/*")]) == 1, "tables of what has grown are removed"


def query(*words: str) -> tuple[int, str, str]:
    result = esper("query", *words)
    return result.exit_code, result.stdout, result.stderr


def test_query_all_as_typed(home: Path) -> None:
    write_trainings(home)
    rounds = query("--all", "SELECT run, round FROM rounds ORDER BY ALL", "--csv")
    assert rounds == (0, "run,round\none,1\ntwo,1\n", "")
    assert query("SELECT state FROM runs WHERE run = 'one'", "--all", "--json")[1] == '[{"state": "DIED"}]\n'
    code, told, _ = query("--all", "--views")
    assert code == 0
    assert {line.split()[0] for line in told.splitlines()[1:]} == {"runs", *VIEWS}
    assert query("--all")[0] == 2
    assert query("--all", "one", "SELECT 1")[0] == 2
    assert query("--all", "SELECT nothing FROM rounds")[0] == 5
    with (home / "runs" / "two" / "events.jsonl").open("ab") as file:
        file.write(b"damage\n")
    code, told, said = query("--all", "SELECT count(*) AS n FROM rounds", "--csv")
    assert (code, told) == (1, "n\n2\n")
    assert "two: damaged: line" in said
