"""Three kinds of peers, four harms: none ends a run, blocks it, makes it grow, or speaks to a terminal.

A viewer has a key of that role; a stranger has none; another uid is another user of the same machine.
SECURITY.md lists them. What each tries is in `tests/protocol/hostile.py`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.errors import KeyRefused, NoReply, RequestError
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.keys import make_client
from tests.trainer.command import esper

from .harness import DAEMON, StartPython, gateway_process, until
from .sshd import free_ports

MAX_GROWTH_BYTES = 64 * 2**20
PEERS = (
    "viewer",
    "stranger",
    pytest.param(
        "uid",
        marks=[
            pytest.mark.nightly,
            pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else"),
        ],
    ),
)
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("peer", PEERS)]
Attack = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def address() -> str:
    make_client("viewer", server=None, role="viewer")
    make_client("bystander", server=None, role="viewer")
    return f"tcp://127.0.0.1:{free_ports(3)}"


def serves(address: str) -> bool:
    """Whether a client is let in; a flood may hold the gateway, or end it for a second."""
    try:
        with connect(address, key="bystander") as run:
            return run.status()["name"] == "alpha"
    except (KeyRefused, NoReply, RequestError):
        return False


@pytest.fixture
def victim(address: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon; the folders above the product's own let other users through."""
    home.parent.chmod(0o755)
    with (home.parent / "terminal").open("wb") as terminal:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, "alpha"], stdout=subprocess.PIPE, stderr=terminal
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            with gateway_process(address):
                until(lambda: serves(address))
                yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def attack(address: str, victim: subprocess.Popen[bytes], python: StartPython) -> Attack:
    """Start a hostile peer; it says when it has tried everything."""

    def start(peer: str, harm: str) -> subprocess.Popen[str]:
        run = find_run("alpha")
        endpoints = json.dumps(run.connection.endpoints)  # type: ignore[union-attr]
        arguments = [peer, harm, address, str(run.path), endpoints, str(victim.pid)]
        return python("-m", "tests.protocol.hostile", *arguments, stdin=subprocess.PIPE)

    return start


def check_done(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def line_of(process: subprocess.Popen[str]) -> str:
    """The line it has written, or nothing; does not wait."""
    assert process.stdout is not None
    return process.stdout.readline() if select.select([process.stdout], [], [], 0)[0] else ""


def test_no_peer_ends_a_run(victim: subprocess.Popen[bytes], attack: Attack, peer: str) -> None:
    check_done(attack(peer, "end"))
    with connect("alpha") as run:
        before = run.status()["round"]
        until(lambda: run.status()["round"] > before)
        status = run.status()
        assert (status["state"], status["commands_waiting"], status["pid"]) == ("TRAINING", 0, victim.pid)
        until(lambda: run.status()["wire"]["failing"] == {})
    assert victim.poll() is None


def test_no_peer_blocks_a_run(
    victim: subprocess.Popen[bytes], attack: Attack, peer: str, address: str
) -> None:
    with connect("alpha") as run:
        hostile, answers = attack(peer, "block"), 0
        while not (said := line_of(hostile)):
            assert hostile.poll() is None
            before = run.status()["round"]
            assert run.pause()["state"] == "accepted", "commands are taken"
            assert until(lambda before=before: run.status()["round"] > before), "it trains on"  # type: ignore[misc]
            answers += 1
            if answers == 2:
                assert hostile.stdin is not None
                hostile.stdin.write(".")
                hostile.stdin.flush()
        assert said == "done\n"
        assert answers > 1
        until(lambda: serves(address))
        assert run.status()["dropped"] == {"life": 0, "metric": 0, "trace": 0, "log": 0}


def test_no_peer_makes_a_run_grow(victim: subprocess.Popen[bytes], attack: Attack, peer: str) -> None:
    process = psutil.Process(victim.pid)
    with connect("alpha") as run:
        until(lambda: run.status()["seq"]["life"] > 20_000)  # what it keeps of its newest events is kept
        before = process.memory_info().rss
        hostile, highest = attack(peer, "grow"), before
        said, after = "", 0
        while after < 100:
            assert hostile.poll() is None
            said = said or line_of(hostile)
            after += bool(said)
            highest = max(highest, process.memory_info().rss)
            run.status()
        assert said == "done\n"
    assert highest - before <= MAX_GROWTH_BYTES, f"{(highest - before) >> 20} MiB"


@pytest.mark.usefixtures("victim")
def test_no_peer_speaks_to_a_terminal(home: Path, attack: Attack, peer: str) -> None:
    check_done(attack(peer, "speak"))
    with connect("alpha") as run:
        newest = run.status()["seq"]["life"]
        until(lambda: run.status()["seq"]["life"] > newest)
    for words in (
        ("clients",),
        ("tail",),
        ("tail", "--json"),
        ("replay", "--type", "command.refused"),
        ("ops",),
        ("status",),
        ("query", "SELECT * FROM commands"),
    ):
        shown = esper(words[0], "alpha", *words[1:], color=True)
        assert shown.exit_code == 0, shown.output
        assert all(line.isprintable() for line in shown.output.split("\n")), words
        assert not any(line.startswith("root") for line in shown.output.split("\n")), "a row was forged"
    for line in (home.parent / "terminal").read_text(errors="strict").split("\n"):
        assert line.isprintable(), "the daemon's own terminal"
