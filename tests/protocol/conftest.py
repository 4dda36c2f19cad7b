"""Each test has its own runs and its own sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.runs import RunFolder
from protocol.server import Server


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`$ESPER_HOME`, and `$XDG_RUNTIME_DIR` in a folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ESPER_HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    yield folder / "home"
    shutil.rmtree(folder)


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
