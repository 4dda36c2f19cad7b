"""`esper-daemon query` as typed; the documentation's examples among it."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from esper_overwatch.protocol.extras import install_command
from esper_overwatch.protocol.messages.events import CommandAccepted
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.trainer.query import database
from esper_overwatch.trainer.query.database import Database
from esper_overwatch.trainer.query.views import DESCRIPTIONS
from tests.trainer.command import esper
from tests.trainer.journals import at, epoch, round_finished, round_started, stage, started, write_run

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "how-to" / "query.md"
EXAMPLES = re.findall(r"^esper-daemon query my-run (\"[^\"]*\")", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.fixture(autouse=True)
def home(home: Path) -> Path:
    """A home with the run my-run in it."""
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed="r1e0n0s0", action="r1e0n0"),
        epoch(
            1,
            1,
            op=[1, 0],
            action_slot=[0, None],
            action=["r1e0n0", "r1e0n1"],
            executed=[True, True],
            gates_asked=[[1, 0], [0, 0]],
            gates_passed=[[1, 0], [0, 0]],
        ),
        stage(at(1, 1, 0), "r0c0", "HOLDING", "FOSSILIZED", contribution=0.25, seed="r1e0n0s0"),
        epoch(1, 2),
        (CommandAccepted(id="c1", method="seed.germinate", params={}, client="me"), at(1, 2)),
        stage(at(1, 2, 1), "r0c1", "DORMANT", "GERMINATED", by="operator", seed="s1", command="c1"),
        round_finished(1, 2),
    ]
    write_run(home, "my-run", told).release()
    return home


def query(*words: str) -> tuple[int, str, str]:
    result = esper("query", *words)
    return result.exit_code, result.stdout, result.stderr


def test_a_table_is_aligned() -> None:
    code, out, _ = query("my-run", "SELECT env, val_accuracy, level FROM epochs WHERE epoch = 1 ORDER BY env")
    assert code == 0
    assert out == "env  val_accuracy  level\n  0           0.5  NORMAL\n  1          0.25  NORMAL\n"


def test_json_says_what_json_lacks_in_words() -> None:
    _, out, _ = query(
        "my-run", "SELECT env, host_grad_norm, ts, val_loss FROM epochs ORDER BY ALL LIMIT 3", "--json"
    )
    rows = json.loads(out)
    assert rows[0] == {"env": 0, "host_grad_norm": 1.0, "ts": "2026-05-28T20:26:43", "val_loss": 1.0}
    assert rows[2]["host_grad_norm"] == "NaN"
    assert rows[2]["val_loss"] is None


def test_csv() -> None:
    _, out, _ = query("my-run", "SELECT 'a,b' AS x, 1 AS y", "--csv")
    assert list(csv.reader(io.StringIO(out))) == [["x", "y"], ["a,b", "1"]]


def test_decimals_are_numbers() -> None:
    sql = "SELECT 0.5 AS share, [1.25] AS list, 'a' AS name UNION ALL SELECT 12.75, [2.5], 'b' ORDER BY name"
    rows = json.loads(query("my-run", sql, "--json")[1])
    assert rows[0] == {"share": 0.5, "list": [1.25], "name": "a"}
    assert query("my-run", sql)[1].splitlines()[1].startswith(" 0.50  ")


def test_columns_of_one_name_keep_their_values() -> None:
    sql = "SELECT a.env, b.env FROM epochs a JOIN epochs b ON a.env < b.env LIMIT 1"
    assert json.loads(query("my-run", sql, "--json")[1]) == [{"env": 0, "env_1": 1}]
    assert query("my-run", sql, "--csv")[1] == "env,env_1\n0,1\n"
    assert query("my-run", sql)[1] == "env  env_1\n  0      1\n"


def test_tables_lists_every_column() -> None:
    code, out, _ = query("my-run", "--tables", "--json")
    assert code == 0
    listed = json.loads(out)
    assert list(listed) == list(DESCRIPTIONS)
    assert {"gain", "rent"} < set(listed["rewards"])
    for view in ("epochs", "rewards", "seeds"):
        columns = listed[view]
        code, described, _ = query("my-run", f"DESCRIBE {view}", "--json")
        assert {row["column_name"]: row["column_type"] for row in json.loads(described)} == columns
    out = query("--views")[1]
    assert "germinated_epoch" in out
    assert all(description in out for description in DESCRIPTIONS.values())


def test_errors_have_one_line_and_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = query("my-run", "SELECT nope FROM epochs")
    assert (code, len(err.splitlines())) == (5, 1)
    assert "nope" in err
    err = query("my-run", "SELECT * FROM events")[2]
    assert err.endswith(f" The views are {', '.join(DESCRIPTIONS)}\n")
    assert "The views are" not in query("my-run", "SELECT nope(1)")[2]
    assert query("other", "SELECT 1")[0] == 3
    assert query("my-run")[0] == 2
    assert query("my-run", "SELECT 1", "--csv", "--json")[0] == 2
    monkeypatch.setattr(database, "_missing", ModuleNotFoundError(name="duckdb"))
    code, _, err = query("my-run", "SELECT 1")
    assert (code, err) == (
        9,
        f"esper-daemon: duckdb is not installed; install it with: {install_command('export')}\n",
    )


def test_the_page_answers_19_views_of_the_prior_art() -> None:
    views = (DOCS / "reference" / "sql.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| `(\w+)` \| `(SELECT .*)` \|$", views, re.M)
    assert len(answers) == 19
    with closing(Database(find_run("my-run").path / EVENTS_FILE)) as asked:
        for view, sql in answers:
            assert asked.ask(sql).columns, view


def test_the_page_has_all_examples() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_pages_examples_work(example: str) -> None:
    code, out, err = query("my-run", *shlex.split(example), "--json")
    assert code == 0, err
    assert json.loads(out)
