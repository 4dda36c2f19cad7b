"""Each test has its own runs and its own sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server import server as server_module
from esper_overwatch.protocol.server.server import Server

from .harness import DAEMON, Daemon, Reader, StartPython


@pytest.fixture(autouse=True)
def home(short_home: Path) -> Path:
    """`$ESPER_HOME`; it is not made yet."""
    return short_home


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Server]]:
    """Start servers by name in this process; what a test leaves open is closed after it."""
    servers: list[Server] = []

    def start(name: str | None = "alpha") -> Server:
        server = Server(RunFolder.claim(name), hello={"note": "of the trainer"})
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()
        server.run.release()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    """A server whose run is TRAINING."""
    server = start()
    server.set_state("TRAINING")
    return server


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    """Subscribers that keep what they get, closed after the test."""
    made: list[Reader] = []

    def make(name: str | None = None, **more: object) -> Reader:
        made.append(Reader(name, **more))
        return made[-1]

    yield make
    for one in made:
        one.subscriber.close()


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five a second, of servers in this process."""
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.2)


@pytest.fixture
def python(home: Path) -> Iterator[StartPython]:
    """Start Python with these words in processes that are killed after the test."""
    started: list[subprocess.Popen[Any]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[Any]:
        options = {"stdout": subprocess.PIPE, "text": True} | options
        started.append(subprocess.Popen([sys.executable, *words], **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def daemon(python: StartPython) -> Callable[..., Daemon]:
    """Start daemons, by a script that prints a line when it is ready, in processes of their own."""

    def start(name: str = "alpha", script: str = DAEMON) -> Daemon:
        process = python("-c", script, name, stdin=subprocess.PIPE, text=False)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    return start
