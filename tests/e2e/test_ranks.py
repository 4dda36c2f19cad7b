"""torchrun starts a run on two ranks; where one is lost, its restart goes on from the checkpoint."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from esper_overwatch.trainer.checkpoint import load
from tests.cases import nightly
from tests.trainer.test_late_reports import LATE

from .conftest import DAEMON, SMALL, House, eventually, stop_in_mid_episode
from .courses import course
from .test_resume import OF_THE_BOOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def torchrun(
    house: House, name: str | None, *arguments: str, restarts: int = 0, late: bool = False
) -> subprocess.Popen[str]:
    """Two ranks on this machine; without a name they resume a run, by its own options.

    Args:
        house: where.
        name: of a new run.
        arguments: more of `esper-daemon start`.
        restarts: how often torchrun starts the ranks anew.
        late: whether they report as on a GPU.
    """
    program = house.home.with_name("late.py")
    program.write_text(f"{LATE}\nfrom esper_overwatch.trainer.cli.main import main\nmain()")
    daemon = (str(program),) if late else DAEMON
    new = [] if name is None else [name, *(word for item in SMALL for word in ("--set", item))]
    launch = ("--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts))
    words = ("-m", "torch.distributed.run", *launch, *daemon, "start", *new, *arguments)
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with said(house).open("ab") as stderr:
        return house.open(*words, environment=path, stdout=subprocess.DEVNULL, stderr=stderr)


def said(house: House) -> Path:
    """What torchrun and its ranks write to standard error."""
    return house.home.with_name("said-by-ranks")


def second_rank(torchrun: subprocess.Popen[str]) -> int:
    for child in psutil.Process(torchrun.pid).children():
        if child.environ().get("RANK") == "1":
            return child.pid
    raise AssertionError("no second rank")


def test_killed_rank_ends_boot_and_restart_resumes(house: House) -> None:
    assert house.spawn("whole", "--rounds", "1").wait(300) == 0
    process = torchrun(house, "cut", restarts=1)
    eventually(lambda: len(house.journal("cut", "checkpoint.saved")) >= 2, every=0.01)
    os.kill(second_rank(process), signal.SIGKILL)
    again = eventually(lambda: house.journal("cut", "run.started")[1:])[0]["data"]["resumed_round"]
    eventually(lambda: house.journal("cut", "round.finished")[-1]["ctx"]["round"] >= again + 2)
    os.kill(house.journal("cut", "run.started")[1]["data"]["pid"], signal.SIGTERM)
    assert process.wait(300) == 0, said(house).read_text()
    (lost,) = house.journal("cut", "rank.lost")
    assert "rank 1 (pid" in lost["data"]["error"]
    assert (house.run_folder("cut") / "checkpoints" / lost["data"]["checkpoint"]).name.startswith("round-")
    stopped = [event["data"] for event in house.journal("cut", "run.stopped")]
    assert [end["exit_code"] for end in stopped] == [11, 0]
    assert stopped[0]["reason"] == "a rank was lost"
    started = [event["data"] for event in house.journal("cut", "run.started")]
    assert [boot["ranks"] for boot in started] == [2, 2]
    assert again >= 2
    whole = [event["data"]["final_accuracy"] for event in house.journal("whole", "round.finished")]
    rounds = {event["ctx"]["round"]: event["data"] for event in house.journal("cut", "round.finished")}
    assert sorted(rounds) == list(range(1, len(rounds) + 1))
    assert rounds[1]["final_accuracy"] == whole[0]
    assert {event["ctx"]["rank"] for event in house.journal("cut", "rank.epoch")} == {1}


@pytest.mark.nightly
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_command_reaches_all_ranks(house: House, late: bool) -> None:
    process = torchrun(house, "pair", "--set", "policy.kind=no_growth", late=late)
    eventually(lambda: house.journal("pair", "epoch"))
    assert house.ask("pause", "pair")
    paused = len(house.journal("pair", "epoch"))
    assert house.ask("escalate", "pair", "--epochs", "2", "--no-wait")
    assert house.ask("param", "pair", "host.learning_rate=0.01")
    saved = house.ask("checkpoint", "pair")
    (other,) = load(Path(saved["path"]))["other_ranks"]
    rank = torch.load(io.BytesIO(bytes(other.numpy())), weights_only=True)
    assert rank["parameters"] == {"host.learning_rate": 0.01}
    assert len(house.journal("pair", "epoch")) == paused
    assert house.ask("resume", "pair")
    refused = house.daemon("seed", "prune", "pair", "--env", "3", "--slot", "r0c0")
    assert refused.returncode == 4
    assert "env 3 slot r0c0 is DORMANT" in refused.stderr
    planted = house.ask("seed", "germinate", "pair", "--env", "3", "--slot", "r0c1", "--blueprint", "norm")
    assert planted["stage"] == "GERMINATED"
    (stage, *_) = house.journal("pair", "seed.stage")
    assert (stage["ctx"]["env"], stage["data"]["by"]) == (3, "operator"), "an env of the second rank"
    layers = eventually(lambda: house.journal("pair", "layers"))[0]["data"]
    assert None not in layers["grad_norm"][0], "the first layer is the host's; every env of both ranks has it"
    assert house.ask("stop", "pair")
    assert process.wait(300) == 0


def first_round(house: House, name: str) -> list[Any]:
    """What hosts and seeds did before the policy's first update, without what the clock determines."""
    streams = course(house, name, OF_THE_BOOT)
    events = [*streams["metric"], *streams["life"]]
    kinds = ("epoch", "seed.stage", "seed.germinated", "episode.finished")
    return [event for event in events if event[0] in kinds and event[1]["round"] == 1]


@pytest.mark.nightly
def test_two_ranks_go_on_as_one_and_back(house: House) -> None:
    words = ("--set", "episode_epochs=24", "--rounds", "1")
    assert house.spawn("whole", *words).wait(300) == 0
    cut = stop_in_mid_episode(
        house, lambda name: torchrun(house, name, *words), lambda name: house.journal(name, "epoch")
    )
    assert house.spawn(cut, "--resume", cut, "--rounds", "1").wait(300) == 0
    assert torchrun(house, None, "--resume", cut, "--rounds", "2").wait(300) == 0
    assert [boot["data"]["ranks"] for boot in house.journal(cut, "run.started")] == [2, 1, 2]
    assert [end["ctx"]["round"] for end in house.journal(cut, "round.finished")] == [1, 2]
    whole = first_round(house, "whole")
    assert len([event for event in whole if event[0] == "epoch"]) == 24
    assert first_round(house, cut) == whole


ALL_AT_ONCE = (
    *("host.max_grad_norm=0.05", "seeds.max_grad_norm=0.05", "ppo.max_grad_norm=0.01"),
    *("task.mixture=digits,texture,histogram", "task.instances=2"),
    "host.slot_rows=2",
)
"""Gradients clipped by norms over all ranks, tasks dealt out over all envs, seeds in two rows."""


DECIDING = ("rounds=2", "envs.copies=2", "policy.decision_epochs=1,4")


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("more", [nightly(("rounds=1",)), DECIDING], ids=["each epoch", "decisions"])
def test_two_ranks_write_the_journal_of_one(house: House, more: tuple[str, ...], late: bool) -> None:
    words = [word for item in (*ALL_AT_ONCE, *more) for word in ("--set", item)]
    assert house.spawn("one", *words).wait(300) == 0
    assert torchrun(house, "two", *words, late=late).wait(300) == 0, said(house).read_text()
    one, two = (course(house, name, OF_THE_BOOT) for name in ("one", "two"))
    assert one["life"] == two["life"]
    mine = [event for event in two["metric"] if event[0] == "epoch"]
    assert mine == [event for event in one["metric"] if event[0] == "epoch"]


LOSING = """
import os, signal, sys
from esper_overwatch.trainer.compute.process_group import RankLostError
from esper_overwatch.trainer.daemon.daemon import run_daemon
from esper_overwatch.trainer.ranks.rank_zero import RankZero

def lost(*_):
    raise RankLostError("rank 1 is gone")

def stop(*_):
    RankZero.start_epoch = lambda *_: None  # a second signal would interrupt
    os.kill(os.getpid(), signal.SIGTERM)

for order in {orders}:
    setattr(RankZero, *order)
sys.exit(run_daemon(name="cut", resume=None, file=None, sets={sets!r}))
"""
"""A daemon that finds a rank gone at an order."""


@pytest.mark.parametrize(
    "orders",
    ["[('start_epoch', lost)]", "[('shutdown', lost)]", "[('start_epoch', stop), ('shutdown', lost)]"],
    ids=["the first", "the end", "the end at a stop"],
)
def test_rank_lost_at_an_order_ends_the_boot_orderly(house: House, orders: str) -> None:
    program = LOSING.format(orders=orders, sets=(*SMALL, "rounds=1"))
    ended = house.execute(program)
    assert ended.returncode == 11, ended.stderr
    types = [event["type"] for event in house.journal("cut")]
    assert [types.count(each) for each in ("rank.lost", "postmortem.written", "run.stopped")] == [1, 1, 1]
    (stopped,) = house.journal("cut", "run.stopped")
    assert (stopped["data"]["reason"], stopped["data"]["error"]) == ("a rank was lost", "rank 1 is gone")
    assert not (house.run_folder("cut") / "connection.json").exists(), "the server is closed"
