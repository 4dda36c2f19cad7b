"""A server with the totals of its events, without a trainer."""

from __future__ import annotations

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
def server(short_home: Path, totals: RunTotals) -> Iterator[Server]:
    """Its wire works; what is emitted reaches the totals."""
    server = Server(RunFolder.claim("alpha"), hello={})
    server.observe(totals.observe)
    server.start()
    yield server
    server.close()
    server.run.release()
