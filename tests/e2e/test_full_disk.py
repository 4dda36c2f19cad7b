"""A disk that takes no checkpoint while a daemon does its rounds."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from .conftest import SMALL, House

FILE_BYTES = 200_000
"""Less than a checkpoint has, more than the journal of one round."""


@pytest.mark.slow
def test_unsaved_last_round_is_no_success(house: House) -> None:
    sets = [word for item in SMALL for word in ("--set", item)]
    ended = subprocess.run(
        [sys.executable, "-m", "esper_overwatch.trainer", "start", "full", "--rounds", "1", *sets],
        env={**house.environment, "PYTHONDONTWRITEBYTECODE": "1"},  # Python would keep a half of a large one
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES)),
    )
    assert ended.returncode == 10, ended.stderr
    (failed,) = house.journal("full", "checkpoint.failed")
    assert failed["data"]["error"] == "File too large"
    stopped = house.journal("full", "run.stopped")[-1]["data"]
    assert (stopped["exit_code"], stopped["rounds"]) == (10, 1)
    assert stopped["reason"] == "1 rounds are done, without a checkpoint"
    assert "checkpoints: File too large" in stopped["error"]
