"""A disk that stands still."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from esper_overwatch.protocol.journal.writer import Journal


@pytest.fixture
def blocked_journal(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Journals of this process wait with each write until it is set."""
    released = threading.Event()
    append = Journal.append

    def wait_and_append(journal: Journal, *args: Any) -> None:
        released.wait()
        append(journal, *args)

    monkeypatch.setattr(Journal, "append", wait_and_append)
    return released
