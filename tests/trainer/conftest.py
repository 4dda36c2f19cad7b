"""Each test has its own runs and datasets."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`$ESPER_HOME`; it is not made yet."""
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
