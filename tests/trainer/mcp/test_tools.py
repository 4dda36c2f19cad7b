"""Tools over the package's own client, in this process: ended runs, limits and errors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.extras import install_command
from esper_overwatch.protocol.journal.reader import JournalPart
from esper_overwatch.protocol.journal.writer import JournalLimits
from esper_overwatch.protocol.messages import events as ev
from tests.protocol.values import an_incident
from tests.trainer import journals

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("duckdb", reason="the extra `export` is not installed")

from mcp import Client, StdioServerParameters

from esper_overwatch.trainer.mcp import answers, reading
from esper_overwatch.trainer.mcp.reading import ReadingTools
from esper_overwatch.trainer.mcp.server import make_server
from esper_overwatch.trainer.mcp.targets import Targets
from esper_overwatch.trainer.query.database import QueryError
from esper_overwatch.trainer.query.event_columns import EventColumns, PartSummary
from esper_overwatch.trainer.query.part_cache import count_segments
from esper_overwatch.trainer.query.views import DESCRIPTIONS

EVIL = "\x1b]0;owned\x07\nforged: row \u202e"


def incident(id_: str, *, round_: int, over: bool = False) -> journals.Told:
    return an_incident(id_, since=journals.BEGIN, suspect=EVIL, over=over), journals.at(round_, 1)


@pytest.fixture(autouse=True)
def home(home: Path) -> Path:
    """A home with the ended run alpha."""
    told = [
        journals.started("b1"),
        journals.round_started(1),
        *(journals.epoch(1, n) for n in (1, 2, 3)),
        incident("b1-1", round_=1),
        incident("b1-2", round_=1),
        incident("b1-2", round_=1, over=True),
        journals.round_finished(1),
        (ev.Mark(text=EVIL, client="x"), journals.at(1, 3)),
        (ev.RunStopped(reason="stop", exit_code=0, rounds=1), journals.at(1, 3)),
    ]
    journals.write_run(home, "alpha", told).release()
    return home


def call(tool: str, *, pinned: str | None = None, control: bool = False, **arguments: Any) -> Any:
    """What a tool answers, structured; the text of its error where it is one."""

    async def talk() -> Any:
        async with Client(make_server(Targets(pinned), allow_control=control)) as client:
            result = await client.call_tool(tool, arguments)
            (content,) = result.content
            if result.is_error:
                assert "\n" not in content.text
                return content.text
            assert json.loads(content.text) == result.structured_content
            return result.structured_content

    return asyncio.run(talk())


def names(*, control: bool) -> set[str]:
    async def talk() -> set[str]:
        async with Client(make_server(Targets(), allow_control=control)) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    return asyncio.run(talk())


def test_tools_that_steer_are_offered_only_where_allowed() -> None:
    read = {"list_runs", "compare_runs", "status", "query", "incidents", "events"}
    assert names(control=False) == read
    assert names(control=True) == read | {"escalate", "pause", "resume", "checkpoint", "stop"}
    assert "Unknown tool" in call("pause")


def test_ended_run_is_listed_with_how_it_ended() -> None:
    assert call("list_runs")["runs"] == []
    (row,) = call("list_runs", include_ended=True)["runs"]
    assert row["kind"] == "training"
    assert (row["name"], row["live"], row["state"]) == ("alpha", False, "STOPPED")
    status = call("status", run="al")
    assert (status["round"], status["epoch"], status["stopped"]["reason"]) == (1, 3, "stop")


def test_list_has_tags_options_that_differ_and_last_values(home: Path) -> None:
    for rate in (0.1, 0.01):
        with publish(f"lr-{rate}", config={"lr": rate, "size": 3}, tags=["sweep"], home=home) as run:
            run.log({"loss": rate * 2}, step=1)
    best, other = call("list_runs", where="'sweep' IN tags", sort="summary.loss")["runs"]
    assert (best["name"], best["tags"], best["config"]) == ("lr-0.01", ["sweep"], {"lr": 0.01})
    assert (other["summary"], other["state"]) == ({"loss": 0.2}, "COMPLETED")
    (alone,) = call("list_runs", where="config.lr = 0.1")["runs"]
    assert alone["config"] == {"lr": 0.1, "size": 3}
    assert "no column nme" in call("list_runs", where="nme = 1")


def test_compared_runs_tell_what_differs(home: Path) -> None:
    for rate in (0.1, 0.01):
        with publish(f"lr-{rate}", config={"lr": rate}, home=home) as run:
            run.log({"loss": rate}, step=1)
    answer = call("compare_runs", run="lr-0.1", other="lr-0.01")
    found = {(one["section"], one["name"]): (one["a"], one["b"]) for one in answer["differences"]}
    assert found == {("configuration", "lr"): (0.1, 0.01), ("result", "loss"): (0.1, 0.01)}
    assert "no run nothing" in call("compare_runs", run="nothing", other="lr-0.1")


def test_query_names_every_view() -> None:
    assert ReadingTools.query.__doc__ is not None
    for view in DESCRIPTIONS:
        assert view in ReadingTools.query.__doc__


def test_query_gives_named_rows_up_to_a_number() -> None:
    answer = call("query", sql="SELECT epoch, env, val_accuracy FROM epochs ORDER BY ALL", max_rows=2)
    assert answer["columns"] == ["epoch", "env", "val_accuracy"]
    assert answer["rows"] == [
        {"epoch": 1, "env": 0, "val_accuracy": 0.5},
        {"epoch": 1, "env": 1, "val_accuracy": 0.25},
    ]
    assert answer["truncated"]
    assert not call("query", sql="SELECT 1 AS x")["truncated"]
    assert call("query", sql="SELECT 0.5 AS x")["rows"] == [{"x": 0.5}]
    twice = call("query", sql="SELECT 1 AS x, 2 AS x")
    assert (twice["columns"], twice["rows"]) == (["x", "x_1"], [{"x": 1, "x_1": 2}])


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
        ("COPY epochs TO '/tmp/x.csv'", "disabled"),
        ("SET enable_external_access = true", "locked"),
        ("SET memory_limit = '64GB'", "locked"),
        ("INSTALL httpfs", "disabled"),
        ("SELECT nope FROM epochs", "nope"),
    ],
)
def test_query_reaches_no_file_and_errors_are_one_line(sql: str, told: str) -> None:
    assert told in call("query", sql=sql)


def test_query_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.5)
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
    assert "takes longer than 0.5 s" in call("query", sql=endless)
    monkeypatch.setattr(reading, "SECONDS", 0.0)
    assert "reading the journal takes longer" in call("query", sql="SELECT 1")


def test_memory_of_functions_is_bounded_by_the_process(home: Path) -> None:
    """DuckDB counts none of it: for one such text the server took 8 GB."""
    command = ["-m", "esper_overwatch.trainer", "mcp"]
    server = StdioServerParameters(command=sys.executable, args=command, env={**os.environ})

    async def ask(sql: str) -> Any:
        async with Client(server) as client:
            return await client.call_tool("query", {"sql": sql})

    large = " + ".join(f"length(repeat('{letter}', 4294967200))" for letter in "xyz")
    refused = asyncio.run(ask(f"SELECT {large}"))
    assert refused.is_error
    assert "Out of Memory" in refused.content[0].text


def test_first_query_of_a_long_journal_says_try_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on when the tool has answered, and the next query finds what it has read."""
    told = [journals.started("b1"), journals.round_started(1)]
    told += [journals.epoch(1, number, 0.1) for number in range(1, 80)]
    folder = journals.write_run(home, "long", told, JournalLimits(segment_bytes=15_000))
    folder.release()
    goes_on, read = threading.Event(), EventColumns.read

    def read_slowly(self: EventColumns, part: JournalPart, watch: Any) -> PartSummary:
        assert part.number == 1 or goes_on.wait(300)
        return read(self, part, watch)

    monkeypatch.setattr(EventColumns, "read", read_slowly)
    tools, count = ReadingTools(Targets(None)), "SELECT count(DISTINCT epoch) FROM epochs"
    with monkeypatch.context() as patch:
        patch.setattr(reading, "SECONDS", 1.0)
        with pytest.raises(QueryError) as refused:
            tools.query(count, run="long")
    assert re.fullmatch(
        r"indexing the journal, [01] of \d+ segments so far; it goes on: try again in a moment",
        str(refused.value),
    )
    goes_on.set()
    (row,) = tools.query(count, run="long")["rows"]
    assert list(row.values()) == [79]
    kept, total = count_segments(folder.events)
    assert kept == total >= 3


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = call("query", sql="SELECT repeat('x', 100000) AS x FROM range(1000)", max_rows=1000)
    assert answer["truncated"]
    assert len(json.dumps(answer)) < answers.MAX_ANSWER_BYTES + 1_000
    assert len(answer["rows"][0]["x"]) < answers.MAX_TEXT_CHARACTERS + 30
    monkeypatch.setattr(reading, "QUERY_MEMORY_BYTES", 32 << 20)
    assert "memory" in call("query", sql="SELECT list(range) FROM range(100000000)").lower()
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 1_000)
    cut = call("events", limit=500)
    assert cut["truncated"]
    assert cut["events"][-1]["type"] == "run.stopped", "the newest are kept"


def test_incidents_are_as_they_are_now() -> None:
    (one,) = call("incidents", run="alpha")["incidents"]
    assert (one["id"], one["severity"], one["active"]) == ("b1-1", "warning", True)
    assert one["advice"]
    found = {row["id"]: row["active"] for row in call("incidents", open_only=False)["incidents"]}
    assert found == {"b1-1": True, "b1-2": False}


def test_incidents_of_an_ended_run_are_of_its_last_boot(home: Path) -> None:
    told = [journals.started("b1"), incident("b1-1", round_=2)]
    told += [journals.started("b2", resumed_round=1), incident("b2-1", round_=2)]
    journals.write_run(home, "beta", told).release()
    found = call("incidents", run="beta", open_only=False)["incidents"]
    assert [row["id"] for row in found] == ["b2-1"]


def test_events_are_the_newest_of_the_wanted_types() -> None:
    answer = call("events", limit=2)
    assert [event["type"] for event in answer["events"]] == ["mark", "run.stopped"]
    assert answer["truncated"]
    epochs = call("events", types=["epoch"], limit=2)["events"]
    assert [event["ctx"]["epoch"] for event in epochs] == [2, 3]


def test_text_of_runs_cannot_steer_a_terminal() -> None:
    for answer in (
        call("events", types=["mark"]),
        call("incidents"),
        call("query", sql=f"SELECT '{EVIL}' AS \"{EVIL}\""),
        call("status", run=EVIL),
    ):
        texts = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        assert "owned" in texts
        assert texts.isprintable()


def test_server_for_one_run_tells_of_no_other(home: Path) -> None:
    journals.write_run(home, "beta", [journals.started("b2")]).release()
    assert call("status", pinned="alpha")["name"] == "alpha"
    (row,) = call("list_runs", pinned="alpha")["runs"]
    assert row["name"] == "alpha"
    for one in ("alpha", "al", row["id"], row["id"][:4]):
        assert call("status", pinned="alpha", run=one)["name"] == "alpha"
    for other in ("beta", "alphabet", "lpha", row["id"] + "0"):
        assert "for alpha only" in call("status", pinned="alpha", run=other)


def test_wrong_calls_are_told_in_one_line() -> None:
    assert "no run nobody; there are: alpha" in call("status", run="nobody")
    assert "give the name of a run" in call("status", run="ssh://elsewhere/alpha")
    assert "not live" in call("pause", run="alpha", control=True)
    assert "Field required" in call("query")
    assert "valid integer" in call("events", limit="many")


def test_missing_extra_is_one_line() -> None:
    code = (
        "import sys; sys.modules['mcp'] = None; sys.argv = ['esper-daemon', 'mcp']\n"
        "from esper_overwatch.trainer.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr.count("\n") == 1
    assert f"mcp is not installed; install it with: {install_command('mcp,export')}" in done.stderr
