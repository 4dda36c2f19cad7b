"""Two runs with one seed and the default options write one journal, whatever the clock says."""

from __future__ import annotations

import json

import pytest

from .conftest import DAEMON, House
from .courses import assert_same, course

PER_START = ("run.", "checkpoint.", "log", "system")
WORDS = ("--seed", "5", "--rounds", "2", "--set", "episode_epochs=12", "--set", "device=cpu")
WITH_A_BAD_CLOCK = """
import sys, time

ahead = 0.0

def wrong(clock):
    def read():
        global ahead
        ahead += 0.05
        return clock() + ahead
    return read

time.perf_counter, time.thread_time = wrong(time.perf_counter), wrong(time.thread_time)
sys.argv[0] = "esper-daemon"
from esper_overwatch.trainer.cli.main import main
main()
"""
"""Whatever is timed seems to take at least 50 ms."""


@pytest.mark.slow
def test_default_runs_of_one_seed_write_one_journal(house: House) -> None:
    for name, program in (("plain", DAEMON), ("slow", ("-c", WITH_A_BAD_CLOCK))):
        done = house.run(*program, "start", name, *WORDS, timeout=600)
        assert done.returncode == 0, done.stderr
    plain, slow = (course(house, name, PER_START) for name in ("plain", "slow"))
    assert {"metric", "life"} <= plain.keys()
    assert sum(type_ == "epoch" for type_, *_ in plain["metric"]) == 24
    assert_same(plain, slow)
    started = [house.journal(name, "run.started")[0]["data"]["execution"] for name in ("plain", "slow")]
    assert started[0] == started[1]
    execution = started[0]
    options = f"envs.group_size={execution['group_size']} envs.convolution={execution['convolution']}"
    assert options in json.dumps(house.journal("plain", "log")), "the log tells how to repeat it"
    assert len(house.journal("plain", "run.provenance")) == 1
    differences = house.ask("diff", "plain", "slow")["differences"]
    assert {one["section"] for one in differences} == {"command line"}
