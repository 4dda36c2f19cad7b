"""A server with the totals of its events, without a trainer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.metrics.totals import RunTotals

BLUEPRINTS = ("norm", "attention")


@pytest.fixture
def totals() -> RunTotals:
    return RunTotals(BLUEPRINTS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, totals: RunTotals) -> Iterator[Server]:
    """Its wire works; what is emitted reaches the totals."""
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ESPER_HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    server = Server(RunFolder.claim("alpha"), hello={})
    server.observe(totals.observe)
    server.start()
    yield server
    server.close()
    server.run.release()
    shutil.rmtree(folder)
