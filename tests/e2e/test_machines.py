"""Two machines, as two of torchrun's agents with an address and a home of their own, train one run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.protocol.sshd import free_ports

from .conftest import DAEMON, EPISODE_EPOCHS, SMALL, House, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HERE, THERE = "127.0.0.2", "127.0.0.1"
"""torchrun gives rank 0 to the machine with the lower address; the run's folder is on the other."""
PATIENCE_SECONDS = 600


def agent(house: House, address: str, port: int) -> subprocess.Popen[str]:
    """torchrun on one of the machines; the store is on the one that has the run's folder."""
    home = house.home if address == HERE else house.home.with_name("other-home")
    quick = f"is_host={int(address == HERE)},last_call_timeout=3,keep_alive_interval=1"
    return house.open(
        *("-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HERE}:{port}", "--rdzv-id", "far"),
        *("--rdzv-conf", quick, "--local-addr", address, "--max-restarts", "5"),
        *(*DAEMON, "start", "far", "--or-resume", "--rounds", "0"),
        *(word for item in SMALL for word in ("--set", item)),
        environment={"ESPER_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def boot_with(house: House, ranks: int, number: int) -> dict[str, Any]:
    """What the run's so manyth boot with so many ranks announced, once it has saved a checkpoint."""

    def announced() -> dict[str, Any] | None:
        boots = [event for event in house.journal("far", "run.started") if event["data"]["ranks"] == ranks]
        if len(boots) < number:
            return None
        boot = boots[number - 1]
        saved = [event["seq"] for event in house.journal("far", "checkpoint.saved")]
        data: dict[str, Any] = boot["data"]
        return data if saved and saved[-1] > boot["seq"] else None

    found: dict[str, Any] = eventually(announced, seconds=PATIENCE_SECONDS)
    return found


def accuracies(house: House, name: str, round_: int) -> list[object]:
    epochs = [e["data"] for e in house.journal(name, "epoch") if e["ctx"]["round"] == round_]
    return [(epoch["train_loss"], epoch["val_accuracy"]) for epoch in epochs[:EPISODE_EPOCHS]]


@pytest.mark.nightly
def test_machines_come_fail_and_go(house: House) -> None:
    assert house.spawn("whole", "--rounds", "2").wait(PATIENCE_SECONDS) == 0
    assert house.spawn("far", "--rounds", "1").wait(PATIENCE_SECONDS) == 0
    port = free_ports()
    here, there = agent(house, HERE, port), agent(house, THERE, port)
    first = boot_with(house, 2, 1)
    assert first["resumed_round"] == 1
    assert not (house.home.with_name("other-home") / "runs" / "far").exists(), "rank 0 is where the folder is"

    (rank,) = psutil.Process(there.pid).children()
    assert rank.environ()["RANK"] == "0", "torchrun's"
    rank.kill()
    again = boot_with(house, 2, 2)
    (lost,) = house.journal("far", "rank.lost")
    assert lost["data"]["error"] == f"rank 0 of 2: rank 1 (pid {rank.pid}) on {socket.gethostname()} is gone"
    assert [end["data"]["exit_code"] for end in house.journal("far", "run.stopped")] == [0, 11]

    children = psutil.Process(there.pid).children()
    for process in (there, *children):
        process.kill()
    alone = boot_with(house, 1, 2)
    rounds = [boot["resumed_round"] for boot in (first, again, alone)]
    assert rounds == sorted(rounds), "none began anew"
    os.kill(alone["pid"], signal.SIGTERM)
    assert here.wait(PATIENCE_SECONDS) == 0
    ends = [end["data"]["exit_code"] for end in house.journal("far", "run.stopped")]
    assert ends == [0, 11, 11, 0]
    assert accuracies(house, "far", 2) == accuracies(house, "whole", 2), "two machines train as one"
