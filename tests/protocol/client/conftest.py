"""Daemons on a machine that is reached through a real OpenSSH server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.protocol.harness import DAEMON, Daemon
from tests.protocol.sshd import Machine


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
