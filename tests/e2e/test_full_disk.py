"""A disk that takes no checkpoint while a daemon does its rounds, and one that others fill."""

from __future__ import annotations

import resource

import pytest

from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.protocol.journal.writer import JournalLimits
from tests.trainer import journals

from .conftest import DAEMON, SMALL, House, eventually

FILE_BYTES = 200_000
"""Less than a checkpoint has, more than the journal of one round."""


@pytest.mark.slow
def test_unsaved_last_round_is_no_success(house: House) -> None:
    sets = [word for item in SMALL for word in ("--set", item)]
    ended = house.run(
        *(*DAEMON, "start", "full", "--rounds", "1", *sets),
        environment={"PYTHONDONTWRITEBYTECODE": "1"},  # Python would keep a half of a large one
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES)),
    )
    assert ended.returncode == 10, ended.stderr
    (failed,) = house.journal("full", "checkpoint.failed")
    assert failed["data"]["error"] == "File too large"
    stopped = house.journal("full", "run.stopped")[-1]["data"]
    assert (stopped["exit_code"], stopped["rounds"]) == (10, 1)
    assert stopped["reason"] == "1 rounds are done, without a checkpoint"
    assert "checkpoints: File too large" in stopped["error"]


@pytest.mark.slow
def test_share_of_ended_runs_is_an_option(house: House) -> None:
    told = [journals.started("b1"), *(journals.epoch(1, n) for n in range(1, 200))]
    old = journals.write_run(house.home, "old", told, JournalLimits(segment_bytes=20_000))
    old.release()

    def segments() -> int:
        return len(SegmentFolder(old.events).manifest().segments)

    before = segments()
    assert before > 0
    assert house.start("new", "--rounds", "1").wait(300) == 0
    assert segments() == before, "a tenth of the disk is enough"
    house.start("newer", "--rounds", "1000000", "--set", "journal.keep_share=1e-15")
    eventually(lambda: segments() == 0)

    def said() -> list[str]:
        return [line["data"]["message"] for line in house.journal("newer", "log")]

    eventually(lambda: any("run old: " in line and "journal.keep_share" in line for line in said()))
