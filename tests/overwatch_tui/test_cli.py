"""`esper-tui` without a terminal: --once, --json, and what is said when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esper_overwatch.overwatch_tui import session
from esper_overwatch.overwatch_tui.cli import main
from esper_overwatch.protocol.client.ssh_command import BEGIN, DAEMON_VARIABLE
from tests.protocol.harness import DAEMON, freeze

from . import journal
from .runs import make_run


@pytest.fixture(autouse=True)
def _no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(session, "SEARCH_SECONDS", 0.2)


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def test_a_frame_as_text_at_any_size(tmp_path: Path) -> None:
    path = str(journal.write(tmp_path / "events.jsonl", rounds=2))
    for columns, lines in ((80, 24), (120, 40), (200, 60), (60, 12), (300, 100)):
        result = invoke("--once", "--replay", path, COLUMNS=str(columns), LINES=str(lines))
        assert result.exit_code == 0, result.output
        rows = result.output.rstrip("\n").split("\n")
        assert len(rows) <= lines
        assert max(map(len, rows)) <= columns
        assert "ENV" in result.output
    result = invoke("--once", "--replay", path)
    assert [line[:5].strip(" >▶") for line in result.output.split("\n")[4:20]] == [
        f"{e:02d}" for e in range(16)
    ]


def test_a_view_and_ascii(tmp_path: Path) -> None:
    path = str(journal.write(tmp_path / "events.jsonl", rounds=2))
    result = invoke("--once", "--replay", path, "--view", "policy", "--ascii")
    assert "[3 Policy]" in result.output
    assert result.output.isascii()
    assert invoke("--once", "--replay", path, TERM="linux").output.isascii()


def test_output_of_another_encoding_gets_question_marks(tmp_path: Path) -> None:
    path = str(journal.write(tmp_path / "events.jsonl", rounds=2))
    result = CliRunner(charset="latin-1").invoke(main, ("--once", "--replay", path))
    assert result.exit_code == 0, result.exception
    assert "?" in result.stdout


def test_json_says_the_same_in_figures(tmp_path: Path) -> None:
    path = str(journal.write(tmp_path / "events.jsonl"))
    data = json.loads(invoke("--once", "--json", "--replay", path).output)
    assert (data["run"], data["round"], len(data["envs"])) == ("digits-7f3a", 6, 16)
    assert data["envs"][7]["status"] == "warning"
    assert data["envs"][13]["gradient_norm"] is None
    assert data["envs"][7]["norm_drift"] == pytest.approx(1.49)
    worst, *others = [each for each in data["incidents"] if each["active"]]
    assert (worst["severity"], worst["kind"]) == ("critical", "nonfinite")
    assert worst["undo"] == "param.set key=ppo.learning_rate value=0.001"
    assert {each["scope"] for each in others} == {"env02", "env05", "env07", "env13"}
    assert 0.3 < data["last_round"]["accuracy_mean"] < 1.0


def test_after_round_waits_for_that_round(tmp_path: Path) -> None:
    path = str(journal.write(tmp_path / "events.jsonl", rounds=3))
    data = json.loads(invoke("--once", "--json", "--after-round", "2", "--replay", path).output)
    assert data["round"] in (2, 3)
    assert data["last_round"] is not None
    late = invoke("--once", "--after-round", "9", "--replay", path)
    assert late.exit_code == 3
    assert "finished 3 rounds" in late.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--once",), 3, "no live run found; start one with: esper-daemon start"),
        (("--once", "nobody"), 3, "nobody"),
        (("--once", "--replay", "nobody"), 3, "no run nobody"),
        (("--json",), 2, "go with --once"),
        (("--after-round", "1"), 2, "go with --once"),
        (("--replay", "x", "y"), 2, "not both"),
        (("--once", "--after-round", "0"), 2, "--after-round"),
        ((), 2, "--once"),
    ],
)
def test_usage_errors_are_one_line_with_exit_code(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert words in result.output
    assert "Traceback" not in result.output


def test_help_and_version() -> None:
    assert "--replay" in invoke("-h").output
    assert "esper-tui" in invoke("--version").output


@pytest.mark.parametrize(
    ("exit_code", "word", "advice"),
    [
        (None, "DIED", "esper-daemon start --detach --resume alpha"),
        (11, "FAILED", "esper-daemon doctor alpha"),
        (0, "STOPPED", "esper-daemon start --detach --resume alpha"),
    ],
)
def test_an_ended_run_is_shown_as_it_ended(
    exit_code: int | None, word: str, advice: str, tmp_path: Path
) -> None:
    make_run(tmp_path / "home", "alpha", exit_code=exit_code)
    for arguments in (("alpha",), ("--replay", "alpha")):
        shown = invoke("--once", *arguments, COLUMNS="120", LINES="30")
        assert shown.exit_code == 0, shown.output
        head, strip, *_ = shown.output.split("\n")
        assert f" {word} BY uid 7 " in head if word == "STOPPED" else f" {word} " in head
        assert "TRAINING" not in head
        assert advice in strip
        data = json.loads(invoke("--once", "--json", *arguments).output)
        assert (data["link"], data["state"], data["round"]) == ("ended", word, 2)


def test_a_stopped_daemon_is_named_with_the_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ANSWER_SECONDS", 1.5)
    words = [sys.executable, "-c", DAEMON, "alpha"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        freeze(process)
        shown = invoke("--once", "alpha")
        process.kill()
    assert shown.exit_code == 3
    assert f"run alpha does not answer: it is stopped; kill -CONT {process.pid} lets it go on" in shown.output


def test_run_whose_rounds_are_done_needs_more(tmp_path: Path) -> None:
    make_run(tmp_path / "home", "alpha", exit_code=0, reason="2 rounds are done")
    for arguments in (("alpha",), ("--replay", "alpha")):
        shown = invoke("--once", *arguments, COLUMNS="120", LINES="30")
        assert " COMPLETED " in shown.output
        assert "esper-daemon start --detach --resume alpha --rounds 4" in shown.output


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a machine that has one run, killed: `alpha`. The `ssh` that leads there prints files."""
    home = tmp_path / "box"
    make_run(home, "alpha")
    row = {"name": "alpha", "id": "7f3a", "live": False, "state": "DIED"}
    (home / "list").write_text(json.dumps({"runs": [row]}) + "\n")
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(
        f"#!/bin/sh\necho welcome\nprintf '%s' '{BEGIN.decode()}'\n"
        f'case "$*" in *" list --all --json --follow") cat {home}/list ;;\n'
        f'*" replay --json -- alpha") cat {home}/runs/alpha/events.jsonl || exit 10 ;;\n'
        "*) echo [] ;; esac\n"
    )
    script.chmod(0o700)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv(DAEMON_VARIABLE, "esper-daemon")
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return home


def test_run_that_ended_on_another_machine_is_shown(box: Path, tmp_path: Path) -> None:
    for words in (("--ssh", "me@box:alpha"), ("--ssh", "me@box", "al"), ("ssh://me@box/alpha",)):
        shown = invoke("--once", *words, COLUMNS="120", LINES="30")
        assert shown.exit_code == 0, shown.output
        assert " DIED " in shown.output.split("\n")[0]
        data = json.loads(invoke("--once", "--json", *words).output)
        assert (data["link"], data["state"], data["round"]) == ("ended", "DIED", 2)
    assert not list((tmp_path / "tmp").iterdir()), "the recording is removed"
    late = invoke("--once", "--after-round", "9", "--ssh", "me@box:alpha")
    assert (late.exit_code, "finished 2 rounds" in late.output) == (3, True), late.output


def test_recording_elsewhere_that_cannot_be_fetched_is_told(box: Path) -> None:
    (box / "runs/alpha/events.jsonl").unlink()
    result = invoke("--once", "--ssh", "me@box:alpha")
    assert result.exit_code == 3
    assert "alpha cannot be fetched: me@box: esper-daemon replay ended with 10" in result.output


def test_several_machines_name_no_run() -> None:
    for arguments in (("--ssh", "a", "--ssh", "b", "alpha"), ("--ssh", "a", "--ssh", "b", "--once")):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "several --ssh are for the list of runs" in result.output
