"""Each test has its own runs and datasets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`$ESPER_HOME`; it is not made yet."""
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`$ESPER_HOME`, and `$XDG_RUNTIME_DIR` in a folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ESPER_HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    yield folder / "home"
    shutil.rmtree(folder)
