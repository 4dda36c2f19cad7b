"""Runs as a set on the command line: found by SQL, tagged, renamed, put away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.catalogue import moves
from esper_overwatch.protocol.runs import RunFolder, find_run
from tests.protocol.harness import until
from tests.trainer.command import esper
from tests.trainer.journals import round_finished, started, write_run


@pytest.fixture(autouse=True)
def home(home: Path) -> Path:
    """Three published runs and a training that was killed."""
    for i, rate in enumerate((0.1, 0.01, 0.001)):
        tags = ["baseline"] if i == 0 else []
        with publish(f"exp-{i}", config={"lr": rate, "opt": {"name": "adam"}}, tags=tags, notes="own") as run:
            run.log({"loss": 1 / (i + 1), "train/acc": float("nan") if i == 2 else i / 2}, step=5)
    write_run(home, "digits", [started("b"), round_finished(1, 2)]).release()
    return home


def names(*words: str) -> list[str]:
    result = esper("runs", "--columns", "name", "--json", *words)
    assert result.exit_code == 0, result.output
    return [row["name"] for row in json.loads(result.output)]


def row(name: str) -> dict[str, Any]:
    (found,) = json.loads(esper("runs", "--json", "--where", f"name = '{name}'").output)
    return dict(found)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("config.lr < 0.05", {"exp-1", "exp-2"}),
        ("config.lr < 0.05 AND summary.loss < 0.4", {"exp-2"}),
        ("'baseline' IN tags", {"exp-0"}),
        ("'baseline' not in tags and kind = 'published'", {"exp-1", "exp-2"}),
        ("config.opt.name = 'adam' AND summary.\"train/acc\" IS NULL", {"exp-2"}),
        ("Summary.loss BETWEEN 0.4 AND 2 -- the rest", {"exp-0", "exp-1"}),
        ("summary.round = 1", {"digits"}),
        ("state IN ('DIED') AND NOT live", {"digits"}),
        ("created > '2020-01-01' AND notes = 'config.lr < 1'", set()),
        ("notes LIKE 'ow%' AND bytes > 100 AND commit IS NOT NULL", {"exp-0", "exp-1", "exp-2"}),
    ],
)
def test_a_condition_finds_runs(condition: str, found: set[str]) -> None:
    assert set(names("--where", condition)) == found


def test_the_best_is_first_and_runs_without_it_last() -> None:
    assert names("--sort", "summary.loss") == ["exp-2", "exp-1", "exp-0", "digits"]
    assert names("--sort", "summary.loss desc") == ["exp-0", "exp-1", "exp-2", "digits"]
    assert names()[0] == "digits", "the newest"


def test_table_shows_what_condition_and_order_are_about() -> None:
    lines = esper("runs", "--where", "config.lr < 1", "--sort", 'summary."train/acc"').output.splitlines()
    assert lines[0].split() == [
        "name",
        "kind",
        "state",
        "created",
        "tags",
        "config.lr",
        'summary."train/acc"',
    ]
    assert len(lines) == 4
    chosen = esper("runs", "--columns", "name, config.opt.name, coalesce(project, 'x, y')").output
    assert chosen.splitlines()[0].split()[:2] == ["name", "config.opt.name"]


def test_values_keep_their_kinds_in_json() -> None:
    found = row("exp-2")
    assert found["config"] == {"lr": 0.001, "opt.name": "adam"}
    assert found["summary"]["train/acc"] == "NaN"
    assert (found["live"], found["tags"]) == (False, [])
    (shown,) = json.loads(
        esper("runs", "--json", "--columns", "summary.loss,tags", "--where", "name='exp-0'").output
    )
    assert shown == {"summary.loss": 1.0, "tags": ["baseline"]}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--where", "config.lrr < 1"], "no run has config.lrr; there are: config.lr"),
        (["--where", "nme = 'x'"], "no column nme; there are: name"),
        (["--where", "lr <"], "not a condition in SQL"),
        (["--where", "1; DROP TABLE kept"], "not a condition in SQL"),
        (["--where", "name = 'x') UNION SELECT 1 --"], "SQL"),
        (["--sort", "nme"], "no column nme"),
        (["--columns", "name,nme"], "no column nme"),
        (["--columns", ","], "--columns ',' names none"),
    ],
)
def test_what_is_no_condition_is_one_line(words: list[str], part: str) -> None:
    result = esper("runs", *words)
    assert result.exit_code == 2
    assert result.output.startswith("esper-daemon: ")
    assert result.output.count("\n") == 1
    assert part in result.output


def test_tags_and_notes_change_and_survive_a_resume() -> None:
    assert esper("tag", "exp-0", "+good", "-baseline", "-hot", "--project", "mnist").output == (
        "exp-0 (project mnist): good\n"
    )
    assert esper("note", "exp-0", "two\nlines").exit_code == 0
    with publish("exp-0", resume=True, tags=["baseline", "second"]):
        until(lambda: "second, good" in esper("tag", "exp-0").output)
        assert esper("tag", "exp-0", "+live").exit_code == 0
    assert row("exp-0")["tags"] == ["second", "good", "live"]
    assert esper("note", "exp-0").output == "two\nlines\n"
    assert names("--where", "project = 'mnist' AND 'live' IN tags") == ["exp-0"]
    listed = json.loads(esper("list", "--all", "--json").output)
    assert [one["tags"] for one in listed if one["name"] == "exp-0"] == [["second", "good", "live"]]


@pytest.mark.parametrize("words", [["good"], ["--good"], ["+"], ["+" + 65 * "x"], ["+a\nb"]])
def test_what_is_no_tag_is_refused(words: list[str]) -> None:
    assert esper("tag", "exp-0", *words).exit_code == 2
    assert row("exp-0")["tags"] == ["baseline"]


def test_a_renamed_run_goes_on_under_its_new_name() -> None:
    identity = find_run("exp-1").id
    assert esper("rename", "exp-1", "exp-0").exit_code == 8
    assert esper("rename", "exp-1", "a/b").exit_code == 2
    assert esper("rename", "exp", "other").exit_code == 3
    assert esper("rename", "exp-1", "other").exit_code == 0
    assert sorted(names()) == ["digits", "exp-0", "exp-2", "other"]
    with publish("other", resume=True) as run:
        assert (run.name, run.id) == ("other", identity)
        refused = esper("rename", "other", "third")
        assert refused.exit_code == 4
        assert "stop it first" in refused.output
    assert row("other")["config"] == {}


def test_removed_runs_come_back_or_go_for_good(home: Path) -> None:
    assert esper("rm", "exp-0", "exp-1").exit_code == 0
    assert sorted(names()) == ["digits", "exp-2"]
    assert "trash" in esper("restore").output
    assert esper("restore", "exp-0").exit_code == 0
    assert esper("restore", "exp-0").exit_code == 3
    assert esper("rm", "nothing", "exp-2").exit_code == 3
    assert sorted(names()) == ["digits", "exp-0", "exp-2"]
    assert "deleted exp-1" in esper("rm", "--older-than", "0").output
    assert not list((home / "trash").iterdir())
    assert esper("restore").output == "archive and trash are empty\n"


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "1e300"])
def test_trash_of_no_age_is_wrong_usage(days: str) -> None:
    refused = esper("rm", "--older-than", days)
    assert refused.exit_code == 2
    assert "--older-than" in refused.output


def test_trash_is_emptied_by_age_and_follows_no_link(home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("kept")
    (find_run("exp-0").path / "checkpoints" / "link").symlink_to(elsewhere)
    (home / "runs" / "linked").symlink_to(find_run("exp-1").path)
    assert esper("rm", "exp-0").exit_code == 0
    refused = esper("rm", "linked")
    assert refused.exit_code == 10
    assert "link" in refused.output
    (there,) = moves.list_put_away()
    old = there.path.with_name(f"exp-0@{there.since - 31 * 86_400 * 1_000_000}")
    there.path.rename(old)
    os.symlink(elsewhere, old.with_name("other@1"))
    assert "deleted exp-0" in esper("rm").output
    assert (elsewhere / "mine").read_text() == "kept"
    assert (home / "runs" / "exp-1" / "events.jsonl").exists()


def test_archived_runs_are_in_no_list_until_restored() -> None:
    assert esper("archive", "exp-0", "digits").exit_code == 0
    assert sorted(names()) == ["exp-1", "exp-2"]
    with publish("exp-0"):
        assert esper("restore", "exp-0").exit_code == 8
    assert esper("rename", "exp-0", "newer").exit_code == 0
    assert esper("restore", "exp-0", "digits").exit_code == 0
    assert sorted(names()) == ["digits", "exp-0", "exp-1", "exp-2", "newer"]


def test_a_live_run_is_neither_removed_nor_archived(home: Path) -> None:
    with RunFolder.claim("alive"):
        for command in ("rm", "archive"):
            assert esper(command, "alive").exit_code == 4
        assert (home / "runs" / "alive").is_dir()


def test_rebuild_reads_every_run_again() -> None:
    before = esper("runs", "--json").output
    assert esper("runs", "--rebuild").output == "read 4 runs again\n"
    assert esper("runs", "--json").output == before


def test_commands_on_the_set_run_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["runs", "--ssh", "nobody@host.invalid"], ["rm", "--ssh", "nobody@host.invalid", "exp-0"]):
        assert esper(*words).exit_code == 3
    assert "exp-0" in names()


def test_list_follows_what_changes_until_nobody_reads(home: Path) -> None:
    command = [sys.executable, "-m", "esper_overwatch.trainer", "list", "--all", "--json", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        first = next(line for line in lines if "runs" in line)
        assert {run["name"] for run in first["runs"]} == {"exp-0", "exp-1", "exp-2", "digits"}
        assert esper("rename", "exp-0", "other").exit_code == 0
        found = next(line for line in lines if line.get("runs"))
        assert ([run["name"] for run in found["runs"]], found["gone"]) == (["other"], ["exp-0"])
        assert {} in lines, "it says each second that it lives"
        process.stdout.close()
        assert process.wait(300) == 141
    assert esper("list", "--follow").exit_code == 2
