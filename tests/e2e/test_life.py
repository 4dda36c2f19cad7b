"""A daemon's life: kills, resumes, two under one name, many side by side."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from .conftest import DAEMON, SMALL, House, eventually


def losses(house: House, name: str) -> dict[tuple[int, int], list[float]]:
    """(round, epoch) → train losses of all envs; the last boot's word counts."""
    return {
        (e["ctx"]["round"], e["ctx"]["epoch"]): e["data"]["train_loss"] for e in house.journal(name, "epoch")
    }


@pytest.mark.slow
def test_kill_9_leaves_journal_and_resume_continues_curve(house: House) -> None:
    cut = house.spawn("cut", "--rounds", "1000")
    eventually(lambda: len(house.journal("cut", "round.finished")) >= 2)
    cut.kill()
    cut.wait()
    before = house.journal("cut")
    assert before, "the journal reads line by line up to the kill"
    finished = len(house.journal("cut", "round.finished"))
    rounds = ("--rounds", str(finished + 2))

    resumed = house.spawn("cut", "--resume", "cut", *rounds)
    assert resumed.wait(300) == 0
    whole = house.spawn("whole", *rounds)
    assert whole.wait(300) == 0
    starts = house.journal("cut", "run.started")
    assert starts[1]["data"]["resumed_round"] >= finished - 1
    assert losses(house, "cut") == losses(house, "whole")
    curve = {
        name: [e["data"]["return_mean"] for e in house.journal(name, "round.finished")]
        for name in ("whole", "cut")
    }
    assert curve["cut"][-1] == curve["whole"][-1]
    for stream_type in ("epoch", "round.finished"):
        numbers = [e["seq"] for e in house.journal("cut", stream_type)]
        assert numbers == sorted(set(numbers))


def test_sigterm_saves_and_says_so(house: House) -> None:
    process = house.spawn("term")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    kinds = [e["type"] for e in house.journal("term")]
    assert kinds[-1] == "run.stopped"
    saved = house.journal("term", "checkpoint.saved")[-1]
    assert saved["data"]["reason"].startswith("stop")
    assert os.path.exists(saved["data"]["path"])
    assert not (house.run_folder("term") / "connection.json").exists()


@pytest.mark.slow
def test_run_whose_rounds_are_done_stops_and_only_resumes(house: House) -> None:
    assert house.spawn("done", "--rounds", "1").wait(300) == 0
    states = [e["data"] for e in house.journal("done", "run.state")]
    assert states[-1] == {"state": "STOPPING", "reason": "1 rounds are done"}
    assert house.journal("done")[-1]["type"] == "run.stopped"
    again = house.daemon("start", "done")
    assert again.returncode == 8
    assert "--resume done" in again.stderr


@pytest.mark.slow
def test_detached_start_says_its_name_or_its_failure(house: House) -> None:
    bad = house.daemon("start", "x", "--detach", "--set", "envs.count=0")
    assert bad.returncode == 9
    assert "envs.count" in bad.stderr
    sets = [word for item in SMALL for word in ("--set", item)]
    started = house.daemon("start", "good", "--detach", *sets)
    assert (started.returncode, started.stderr.partition(" (")[0]) == (0, "run good")
    taken = house.daemon("start", "--detach", "--resume", "good")
    assert taken.returncode == 8
    assert str(house.ask("status", "good")["pid"]) in taken.stderr
    status = house.ask("status", "good")
    assert json.dumps(status)
    assert house.daemon("stop", "good").returncode == 0


@pytest.mark.slow
def test_a_long_episode_is_saved_on_the_way(house: House) -> None:
    process = house.spawn(
        "long", "--rounds", "1", "--set", "episode_epochs=2000", "--set", "checkpoint.every_seconds=1"
    )
    saved = eventually(lambda: house.journal("long", "checkpoint.saved"))[0]
    assert saved["data"]["reason"] == "periodic"
    assert saved["ctx"]["round"] == 1
    assert saved["ctx"]["epoch"] > 0
    process.kill()
    process.wait()
    house.spawn("long", "--resume", "long")
    resumed = eventually(lambda: house.journal("long", "run.started")[1:])[0]
    assert resumed["data"]["resumed_round"] == 0
    after = eventually(lambda: [e for e in house.journal("long", "epoch") if e["ts"] > resumed["ts"]])
    assert after[0]["ctx"]["epoch"] > saved["ctx"]["epoch"], "it goes on within the episode"


@pytest.mark.slow
def test_run_whose_folder_is_deleted_ends(house: House) -> None:
    process = house.start("gone", "--rounds", "1000000")
    folder = house.run_folder("gone")
    eventually(lambda: (folder / "connection.json").exists())
    eventually(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())
    assert process.wait(300) == 10
    said = house.said(process)
    assert said.count(f"server: the run's folder {folder} was deleted: its journal") == 1
    assert "ends with exit code 10: its folder was deleted, without a checkpoint" in said
    assert "Traceback" not in said


@pytest.mark.nightly
def test_follower_sees_next_boot_and_ends_with_folder(house: House, tmp_path: Path) -> None:
    first = house.spawn("followed")
    told, said = tmp_path / "told", tmp_path / "said"
    with told.open("wb") as out, said.open("wb") as err:
        command = (*DAEMON, "tail", "-f", "--type", "run.started", "--json", "followed")
        tail = house.open(*command, stdout=out, stderr=err)
    eventually(lambda: told.read_bytes().count(b"run.started") == 1)
    first.kill()
    eventually(lambda: b"waiting for it to come back" in said.read_bytes())
    first.wait()
    second = house.spawn("followed", "--resume", "followed")
    eventually(lambda: told.read_bytes().count(b"run.started") == 2)
    second.kill()
    second.wait()
    shutil.rmtree(house.run_folder("followed"))
    assert tail.wait(300) == 3
    assert "no run followed" in said.read_text().splitlines()[-1]
