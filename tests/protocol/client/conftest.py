"""A machine that is reached through a real OpenSSH server, and daemons on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.protocol.harness import DAEMON, Daemon
from tests.protocol.sshd import Machine


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The host `box`, with no run on it."""
    folder = Path(tempfile.mkdtemp(prefix="esper-box-"))
    machine = Machine(folder)
    monkeypatch.setenv("PATH", f"{machine.client}:{os.environ['PATH']}")
    with machine:
        yield machine
    shutil.rmtree(folder)


@pytest.fixture
def over_there(box: Machine) -> Iterator[Callable[[str], Daemon]]:
    """Start daemons on `box`."""
    started: list[Daemon] = []

    def start(name: str) -> Daemon:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, name], stdout=subprocess.PIPE, env=box.environment
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
