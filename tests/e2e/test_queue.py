"""A queue of real trainings: order, places, ends of each kind, and kills of who works it off."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.power.disk import build_recorder, compiler

from .conftest import DAEMON, SMALL, House, eventually

SETS = [word for item in SMALL for word in ("--set", item)]


def add(house: House, name: str, rounds: int, *sets: str) -> None:
    result = house.daemon("queue", "add", "start", name, *SETS, "--rounds", str(rounds), *sets)
    assert result.returncode == 0, result.stderr


def work_off(house: House, *words: str) -> subprocess.Popen[str]:
    command = (*DAEMON, "queue", "run", *words)
    return house.open(*command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)


def entries(house: House) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in house.ask("queue", "list")}


def rounds(house: House, name: str) -> list[int]:
    """Rounds that the run has finished, without those that were trained again after a kill."""
    found: list[int] = []
    for event in house.journal(name, "round.finished"):
        found = [one for one in found if one < event["ctx"]["round"]] + [event["ctx"]["round"]]
    return found


@pytest.mark.slow
def test_no_kill_loses_or_repeats_a_training(house: House) -> None:
    names = ["a", "b", "c"]
    for name in names:
        add(house, name, 12)
    for _ in range(3):
        worker = work_off(house, "--jobs", "2")
        begun = sum(len(house.journal(name, "epoch")) for name in names)
        wanted = begun + random.randrange(1, 60)
        eventually(lambda: sum(len(house.journal(name, "epoch")) for name in names) >= wanted)  # noqa: B023
        worker.kill()
        worker.wait()
        running = [e for e in entries(house).values() if e["state"] == "running" and e["pid"]]
        if running and random.random() < 0.7:
            victim = random.choice(running)["pid"]
            if os.path.exists(f"/proc/{victim}"):
                os.kill(victim, signal.SIGKILL)
    done = house.daemon("queue", "run", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert {name: entry["state"] for name, entry in entries(house).items()} == dict.fromkeys(names, "done")
    for name in names:
        assert rounds(house, name) == list(range(1, 13))
        last = house.journal(name, "run.stopped")[-1]["data"]
        assert last["exit_code"] == 0


@pytest.mark.slow
def test_interrupted_queue_goes_on_where_it_was(house: House) -> None:
    add(house, "long", 400)
    add(house, "next", 1)
    worker = work_off(house)
    eventually(lambda: len(house.journal("long", "epoch")) > 20)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(120) == 130
    assert worker.stderr is not None
    assert "long: interrupted; it goes on when the queue does" in worker.stderr.read()
    listed = entries(house)
    assert (listed["long"]["state"], listed["next"]["state"]) == ("waiting", "waiting")
    assert house.journal("long", "checkpoint.saved"), "it ended in order"

    worker = work_off(house)
    eventually(lambda: len(house.journal("long", "run.started")) == 2)
    eventually(lambda: house.daemon("status", "long").returncode == 0)
    assert house.daemon("queue", "cancel", "long").stdout == "entry 1: long is ended by `queue run`\n"
    assert worker.wait(120) == 0
    listed = entries(house)
    assert (listed["long"]["state"], listed["next"]["state"]) == ("cancelled", "done")
    assert listed["long"]["ended"] <= listed["next"]["begun"], "one at a time"


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C compiler (Debian's package gcc)")
def test_a_clock_set_back_trains_nothing_twice(house: House, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    house.environment |= {"LD_PRELOAD": str(build_recorder(tmp_path)), "CLOCK_OFFSET": str(clock)}
    add(house, "once", 6)
    worker = work_off(house)
    eventually(lambda: house.journal("once", "epoch"))
    worker.kill()
    worker.wait()
    clock.write_text("-3600")
    eventually(lambda: house.journal("once", "run.stopped"))
    assert house.daemon("queue", "run").returncode == 0
    assert entries(house)["once"]["state"] == "done"
    assert len(house.journal("once", "run.started")) == 1


@pytest.mark.slow
def test_each_end_of_a_training_is_told(house: House) -> None:
    add(house, "wrong", 1, "--set", "task.dataset=absent")
    add(house, "killed", 20)
    add(house, "ended", 4000)
    worker = work_off(house, "--jobs", "3", "--device", "cpu")
    eventually(lambda: len(house.journal("killed", "epoch")) > 8)
    os.kill(entries(house)["killed"]["pid"], signal.SIGKILL)
    eventually(lambda: house.daemon("stop", "ended").returncode == 0)
    assert worker.wait(300) == 7, "an entry has failed"
    listed = entries(house)
    assert (listed["wrong"]["state"], listed["wrong"]["exit_code"]) == ("failed", 9)
    assert "absent" in listed["wrong"]["reason"]
    assert listed["killed"]["state"] == "done"
    assert rounds(house, "killed") == list(range(1, 21))
    assert (listed["ended"]["state"], listed["ended"]["device"]) == ("stopped", "cpu")
    assert listed["ended"]["reason"].startswith("stopped by ")
    assert worker.stderr is not None
    assert "killed: signal 9: " in worker.stderr.read()


def test_what_cannot_be_trained_is_refused_at_once(house: House) -> None:
    for words, code, said in (
        (["start", "a", "--set", "rounds=x"], 9, "rounds"),
        (["start", "a", "--rounds", "2", "--detach"], 2, "no --resume or --detach"),
        (["start", "--rounds", "2"], 2, "has the run's NAME"),
        (["status"], 2, "give what is to be trained"),
        (["sweep"], 2, "has --space FILE"),
        (["sweep", "--space", "/absent.toml"], 9, "/absent.toml"),
        (["start", "a", "--rond", "2"], 2, "No such option"),
    ):
        result = house.daemon("queue", "add", *words)
        assert result.returncode == code, result.stderr
        assert said in result.stderr
    assert house.ask("queue", "list") == []
    assert house.daemon("queue", "run").returncode == 0, "nothing waits"
