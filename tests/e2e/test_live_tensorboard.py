"""`esper-daemon tensorboard` beside a run that is killed and resumed, and over TCP."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.protocol.sshd import free_ports
from tests.trainer.export.test_live_tensorboard import scalars_in

from .conftest import DAEMON, House, eventually

pytestmark = pytest.mark.slow
EPOCHS = 24


def follow(house: House, run: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command; it has begun when its folder has a file."""
    command = (*DAEMON, "tensorboard", run, "--to", str(folder), "--json", *words)
    follower = house.open(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: list(folder.glob("events.out.tfevents.*")) or follower.poll() is not None)
    return follower


@pytest.mark.nightly
def test_live_files_equal_an_export_after_a_crash(house: House, tmp_path: Path) -> None:
    words = ("--set", "envs.threads=1", "--set", f"episode_epochs={EPOCHS}")
    cut = house.spawn("cut", "--rounds", "1000", *words)
    follower = follow(house, "cut", tmp_path / "live")
    begun = len(house.journal("cut", "round.finished"))

    def is_amid_a_round() -> bool:
        clock = house.journal("cut", "epoch")[-1]["ctx"]
        return begun + 2 <= clock["round"] and 0 < clock["epoch"] < EPOCHS

    eventually(is_amid_a_round, every=0.01)
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    rounds = len(house.journal("cut", "round.finished"))
    assert follower.stderr is not None
    while "waiting for it" not in (said := follower.stderr.readline()):
        assert said, "it has ended"
    again = house.spawn("cut", "--resume", "cut", "--rounds", str(rounds + 2))
    assert again.wait(300) == 0
    out, err = follower.communicate(timeout=300)
    assert follower.returncode == 0, err
    assert house.ask("export", "cut", "--to", str(tmp_path / "whole"), "--format", "tensorboard")
    live, whole = scalars_in(tmp_path / "live"), scalars_in(tmp_path / "whole" / "cut")
    assert live == whole
    assert json.loads(out)["scalars"] == sum(map(len, whole.values()))
    assert [step for step, _ in live["epoch/seconds"]] == list(range(1, (rounds + 2) * EPOCHS + 1))
    ended = house.ask("tensorboard", "cut", "--to", str(tmp_path / "ended"))
    assert scalars_in(tmp_path / "ended") == whole
    assert ended["scalars"] == json.loads(out)["scalars"]


def test_interrupt_leaves_complete_files_over_tcp(house: House, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports(3)}"
    assert house.daemon("keys", "new", "looker", "--role", "viewer").returncode == 0
    house.spawn("far")
    house.serve_tcp("far", address)
    follower = follow(house, address, tmp_path / "live")
    eventually(lambda: scalars_in(tmp_path / "live").get("round/accuracy_mean"))
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=300)
    assert (follower.returncode, "Traceback" in err) == (130, False), err
    told = json.loads(out)
    found = scalars_in(tmp_path / "live")
    assert (told["run"], told["scalars"]) == ("far", sum(map(len, found.values())))
    steps = [step for step, _ in found["epoch/seconds"]]
    assert steps == list(range(1, len(steps) + 1))
