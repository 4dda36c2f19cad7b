"""Clocks on the screen are local time: the tests are in UTC. What a user pins stays out of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.source.temporary_folders import remove_temporary_folders


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in [name for name in os.environ if name.startswith("ESPER_TUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    remove_temporary_folders()
    monkeypatch.undo()
    time.tzset()
