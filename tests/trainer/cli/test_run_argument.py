"""`--ssh` on the command line: what reaches the sockets, and what is run over there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.client.ssh_command import DAEMON_VARIABLE
from trainer.cli.main import main


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that notes how it was called and ends with 7."""
    called = tmp_path / "called"
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {called}\nexit 7\n')
    script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(DAEMON_VARIABLE, "esper-daemon")
    return called


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (
            ["tail", "--ssh", "box:alpha", "-n", "3", "--type", "epoch", "--type", "a b", "-f"],
            "esper-daemon tail -f -n 3 --type epoch --type 'a b' -- alpha",
        ),
        (["tail", "--ssh", "me@box"], "esper-daemon tail -n 20"),
        (
            ["replay", "alpha", "--ssh", "box", "--stream", "life", "--first", "2", "--json"],
            "esper-daemon replay --stream life --first 2 --json -- alpha",
        ),
        (["doctor", "alpha", "--ssh", "box"], "esper-daemon doctor -- alpha"),
        (
            ["query", "--ssh", "box", "alpha", "SELECT 1; -- $(x)"],
            "esper-daemon query -- alpha 'SELECT 1; -- $(x)'",
        ),
        (["list", "--ssh", "box", "--all", "--json"], "esper-daemon list --all --json"),
    ],
)
def test_commands_on_files_are_run_over_there(box: Path, words: list[str], there: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 7, result.output
    lines = box.read_text().splitlines()
    assert lines[-1].replace("--follow", "-f").replace("--lines", "-n") == there
    assert lines[-2] in ("box", "me@box")


def test_what_writes_files_stays_there(tmp_path: Path) -> None:
    words = ["export", "--ssh", "box:alpha", "--to", str(tmp_path / "out"), "--format", "parquet"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "run it on that machine" in result.output) == (3, True)


def test_a_host_that_cannot_be_reached_is_one_line(box: Path, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "no route" >&2\nexit 255\n')
    for command in ("status", "pause", "stop"):
        result = CliRunner().invoke(main, [command, "--ssh", "box:alpha"])
        assert result.exit_code == 3
        assert result.output == "esper-daemon: box cannot be reached: no route\n"
    bad = CliRunner().invoke(main, ["status", "--ssh", "-oProxyCommand=x"])
    assert bad.exit_code == 2


def test_the_list_tells_a_client_elsewhere_where_the_sockets_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from protocol.runs import RunFolder
    from protocol.server.server import Server

    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    try:
        (row,) = json.loads(CliRunner().invoke(main, ["list", "--json"]).output)
        assert set(row["endpoints"]) == {"ev", "qry", "ctl"}
        assert row["boot"] == server.boot
    finally:
        server.close()
        server.run.release()
