"""Trials, where another process has begun one already."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from esper_overwatch.protocol.errors import NameTaken
from esper_overwatch.protocol.storage.lock import lock_request
from esper_overwatch.trainer.sweep.trial_run import TrialRun


def test_child_that_has_no_lock_yet_is_told(tmp_path: Path) -> None:
    """Its parent was killed; it holds its log from the first moment, its folder only once torch is there."""
    log = tmp_path / "rates-1.log"
    with log.open("wb") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock_request())
        with pytest.raises(NameTaken, match=r"run rates-1 is about to start already: it writes to .*\.log"):
            TrialRun("rates-1", [], log, "rates")
