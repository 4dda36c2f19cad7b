"""What an operator does with a run on another machine, through a real OpenSSH server and on a real pty."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.protocol.sshd import ABSENT, Machine

from .conftest import SMALL, TERMINAL, House, eventually
from .terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]


@pytest.fixture
def box(house: House) -> Iterator[Machine]:
    """The host `box`, to which the house's ssh knows the way; its login shell says something first."""
    folder = Path(tempfile.mkdtemp(prefix="esper-box-"))
    with Machine(folder) as machine:
        machine.force('echo welcome; eval "$SSH_ORIGINAL_COMMAND"')
        house.environment["PATH"] = f"{machine.client}:{os.environ['PATH']}"
        yield machine
        house.daemon("stop", "--ssh", "box:far")
    shutil.rmtree(folder)


def moment(text: str) -> tuple[int, int]:
    """Round and epoch that the header shows; (0, 0) where it shows none."""
    found = re.search(r"round (\d+)  epoch (\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def test_start_watch_go_back_command_lose_and_fetch(box: Machine, house: House) -> None:
    sets = [word for item in SMALL for word in ("--set", item)]
    start = ["ssh", "box", "esper-daemon", "start", "--detach", "far", *sets]
    subprocess.run(start, env=house.environment, timeout=300, check=True, stdin=subprocess.DEVNULL)
    command = [sys.executable, *TERMINAL, "ssh://box/far"]
    terminal = Terminal(command, house.environment, columns=100, lines=30, controls=True)
    try:
        terminal.wait_for(lambda text: "LIVE" in text and moment(text) > (2, 0))
        terminal.press(" ")
        held = moment(terminal.wait_for("FROZEN"))
        terminal.press(",")
        terminal.wait_for(lambda text: "FROZEN" in text and (0, 0) < moment(text) < held)
        terminal.press("0")
        terminal.wait_for(lambda text: "FROZEN" not in text and "LIVE" in text)
        for key, shown in (("T", "DEBUG"), ("X", "PAUSED")):
            terminal.press(key)
            terminal.wait_for("y/N")
            terminal.press("y")
            terminal.wait_for(shown)
        box.down()
        terminal.wait_for(lambda text: "LOST" in text and "no answer for" in text)
        box.up()
        terminal.wait_for(lambda text: "LIVE" in text and "PAUSED" in text)
        assert house.daemon("resume", "--ssh", "box:far").returncode == 0
        terminal.wait_for(lambda text: "LIVE" in text and "TRAINING" in text)
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        assert "ssh" in {child.name() for child in children}
        terminal.press("q")
        terminal.wait_for("run far continues; watch it again with: esper-tui ssh://box/far")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()
    eventually(lambda: not any(child.is_running() for child in children))
    eventually(lambda: box.num_connections == 0)

    assert house.ask("stop", "--ssh", "box:far")["stopped"]
    terminal = Terminal(command, house.environment, columns=100, lines=30, controls=True)
    try:
        terminal.wait_for(lambda text: "ENDED" in text and "STOPPED" in text)
        terminal.press("R")
        terminal.wait_for(lambda text: "RUNS" in text and "far" in text and "STOPPED" in text)
        terminal.press("q")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()
