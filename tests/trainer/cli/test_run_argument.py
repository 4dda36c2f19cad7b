"""`--ssh` on the command line: what reaches the sockets, and what is run over there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from esper_overwatch.protocol.client.ssh_command import BEGIN, DAEMON_VARIABLE
from esper_overwatch.protocol.errors import NoReply
from esper_overwatch.trainer.cli import run_argument
from esper_overwatch.trainer.cli.main import main
from esper_overwatch.trainer.cli.run_argument import CommandAfterRun
from tests.trainer.command import esper


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that notes how it was called and ends with 7."""
    called = tmp_path / "called"
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {called}\nprintf "{BEGIN.decode()}"\nexit 7\n')
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
        (["query", "--ssh", "box:alpha", "SELECT 1"], "esper-daemon query -- alpha 'SELECT 1'"),
        (["query", "SELECT 1", "--ssh", "ssh://me@box/alpha"], "esper-daemon query -- alpha 'SELECT 1'"),
        (["query", "--ssh", "box:alpha", "--views"], "esper-daemon query --views -- alpha"),
        (["list", "--ssh", "box", "--all", "--json"], "esper-daemon list --all --json"),
        (["diff", "a", "b", "--json", "--ssh", "box"], "esper-daemon diff --json -- a b"),
        (["query", "--ssh", "box", "--all", "SELECT 5 % 2"], "esper-daemon query --all -- 'SELECT 5 % 2'"),
        (
            ["runs", "--where", "name = 'x'", "--ssh", "box"],
            """esper-daemon runs --where 'name = '"'"'x'"'"''""",
        ),
        (["tag", "--ssh", "box:alpha", "+a", "-b"], "esper-daemon tag -- alpha +a -b"),
        (["note", "alpha", "two words", "--ssh", "box"], "esper-daemon note -- alpha 'two words'"),
        (["rm", "a", "b", "--ssh", "box"], "esper-daemon rm --older-than 30.0 -- a b"),
    ],
)
def test_commands_on_files_are_run_over_there(box: Path, words: list[str], there: str) -> None:
    result = esper(*words)
    assert result.exit_code == 7, result.output
    lines = box.read_text().splitlines()
    command = lines[-1].removeprefix(f"echo {BEGIN.decode().strip()}; ")
    assert command.replace("--follow", "-f").replace("--lines", "-n") == there
    assert lines[-2] in ("box", "me@box")


class Asked:
    """Takes the place of a client: fails with how it was asked."""

    def __init__(self, address: str, **_: object) -> None:
        self._address = address

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def hello(self) -> dict[str, Any]:
        return {"commands": {}, "methods": {}}

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        def ask(*words: object, **_: object) -> dict[str, Any]:
            raise NoReply(" ".join([self._address, method, *map(str, words)]))

        return ask


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("param :alpha", "params"),
        ("param :alpha ppo.learning_rate=3e-4", "set_param ppo.learning_rate 0.0003"),
        ("call :alpha mark text=x", "command mark {'text': 'x'} True"),
        ("call :alpha save", "command save {} True"),
        ("mark :alpha hello", "mark hello"),
        ("mark :alpha -- -hello", "mark -hello"),
        ("mark hello :alpha", "mark hello"),
        ("mark : alpha hello", "mark hello"),
        ("cancel :alpha abcd", "cancel abcd"),
        ("seed germinate :alpha --env 0 --slot r0c0 --blueprint norm", "germinate 0 r0c0 norm"),
        ("seed prune :alpha --env 0 --slot r0c0", "prune 0 r0c0"),
        ("lease acquire :alpha", "acquire_lease 60.0 "),
        ("lease release :alpha", "release_lease"),
        ("status :alpha", "status"),
        ("status : alpha", "status"),
    ],
)
def test_run_that_ssh_names_is_not_expected_again(
    monkeypatch: pytest.MonkeyPatch, words: str, asked: str
) -> None:
    """A `:` stands for `--ssh me@box`, with the run behind it."""
    monkeypatch.setattr(run_argument, "connect", Asked)
    line = [word for one in words.split() for word in _with_ssh(one)]
    result = esper(*line)
    assert (result.exit_code, result.output) == (3, f"esper-daemon: ssh://me@box/alpha {asked}\n")


def _with_ssh(word: str) -> list[str]:
    return ["--ssh", f"me@box{word.rstrip(':')}"] if word.startswith(":") else [word]


def test_every_command_that_takes_more_lets_ssh_name_its_run() -> None:
    def leaves(command: click.Command) -> Iterator[click.Command]:
        if isinstance(command, click.Group):
            for one in command.commands.values():
                yield from leaves(one)
        else:
            yield command

    for command in leaves(main):
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        if {"run", "ssh"} <= {one.name for one in command.params}:
            takes_more = len(arguments) > 1 or arguments[0].required
            assert isinstance(command, CommandAfterRun) == takes_more, command.name


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["status", "--ssh", "box:alpha", "beta"], "two runs are named, alpha and beta; give one"),
        (["mark", "--ssh", "box:alpha"], "Missing argument 'TEXT'"),
        (["lease", "acquire", "--ssh", "box"], "Missing argument 'RUN'"),
        (["lease", "release", "--ssh", "box:--force"], "Missing argument 'RUN'"),
    ],
)
def test_runs_too_many_or_too_few_are_refused(words: list[str], problem: str) -> None:
    result = esper(*words)
    assert (result.exit_code, problem in result.output) == (2, True), result.output


def test_what_writes_files_stays_there(tmp_path: Path) -> None:
    words = ["export", "--ssh", "box:alpha", "--to", str(tmp_path / "out"), "--format", "parquet"]
    result = esper(*words)
    assert (result.exit_code, "run it on that machine" in result.output) == (3, True)


def test_a_host_that_cannot_be_reached_is_one_line(box: Path, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "no route" >&2\nexit 255\n')
    for command in ("status", "pause", "stop"):
        result = esper(command, "--ssh", "box:alpha")
        assert result.exit_code == 3
        assert result.output == "esper-daemon: box cannot be reached: no route; try: ssh box\n"
    bad = esper("status", "--ssh", "-oProxyCommand=x")
    assert bad.exit_code == 2


def test_the_list_tells_a_client_elsewhere_where_the_sockets_are() -> None:
    from esper_overwatch.protocol.runs import RunFolder
    from esper_overwatch.protocol.server.server import Server

    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    try:
        (row,) = json.loads(esper("list", "--json").output)
        assert set(row["endpoints"]) == {"ev", "qry", "ctl"}
        assert row["boot"] == server.boot
    finally:
        server.close()
        server.run.release()
