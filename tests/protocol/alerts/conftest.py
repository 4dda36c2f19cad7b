"""Receivers of alerts, closed after the test, and files of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .receiver import Receiver

WriteRules = Callable[[str], Path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Not open yet."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def write_rules(tmp_path: Path) -> WriteRules:
    """Write a file of rules; gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "alerts.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
