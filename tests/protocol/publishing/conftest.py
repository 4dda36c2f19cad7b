"""Published runs, ended after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import PublishedRun, publish

Publish = Callable[..., PublishedRun]


@pytest.fixture
def start_run(home: Path) -> Iterator[Publish]:
    """Publish runs in this process."""
    started: list[PublishedRun] = []

    def start(name: str | None = "loop", **more: Any) -> PublishedRun:
        started.append(publish(name, **more))
        return started[-1]

    yield start
    for run in started:
        run.finish()


@pytest.fixture
def run(start_run: Publish) -> PublishedRun:
    """One, without a configuration."""
    return start_run()


@pytest.fixture
def strict_run(start_run: Publish) -> PublishedRun:
    """One that raises for what it cannot publish."""
    return start_run(strict=True)
