"""A run that evaluates its policy: journal, SQL, best checkpoint; also where it is killed and resumed."""

from __future__ import annotations

import csv
import io
import signal
from typing import Any

import pytest

from .conftest import House, eventually

EVALUATED = (
    "--set",
    "evaluation.rounds=2",
    "--set",
    "evaluation.hosts=4",
    "--set",
    "evaluation.rivals=no_growth,heuristic",
    "--set",
    "evaluation.constant=norm,none",
)
POLICIES = ["no_growth", "heuristic", "ppo", "constant", "ppo"]


def table(house: House, sql: str) -> list[dict[str, str]]:
    result = house.daemon("query", "one", "--csv", sql)
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def evaluations(house: House, name: str) -> list[dict[str, Any]]:
    """Those of the journal that no later boot has repeated, without the clock."""
    told: dict[tuple[int, str], dict[str, Any]] = {}
    for line in house.journal(name, "evaluation.finished"):
        data = {key: value for key, value in line["data"].items() if key != "seconds"}
        told[line["ctx"]["round"], data["policy"]] = data
    return [told[key] for key in sorted(told, key=lambda key: (key[0], key[1] == "ppo"))]


@pytest.mark.slow
def test_evaluations_are_told_and_choose_the_best_checkpoint(house: House) -> None:
    house.spawn("one", "--rounds", "4", *EVALUATED)
    eventually(lambda: house.processes[0].poll() is not None)
    told = house.journal("one", "evaluation.finished")
    assert [line["data"]["policy"] for line in told] == POLICIES
    rows = table(house, "SELECT round, policy, is_rival, return_mean, is_best FROM evaluations")
    assert [row["policy"] for row in rows] == POLICIES
    assert [row["is_rival"] for row in rows] == ["True", "True", "False", "True", "False"]
    mine = [row for row in rows if row["policy"] == "ppo"]
    best = max(mine, key=lambda row: float(row["return_mean"]))
    assert best["is_best"] == "True"
    leads = table(house, "SELECT * FROM evaluation_leads WHERE round = 4 ORDER BY rival")
    assert [row["rival"] for row in leads] == ["constant", "heuristic", "no_growth"]
    for row in leads:
        rival = next(r for r in rows if r["policy"] == row["rival"])
        gap = float(mine[1]["return_mean"]) - float(rival["return_mean"])
        assert float(row["lead"]) == pytest.approx(gap, abs=1e-6)
        assert float(row["low"]) <= float(row["lead"]) <= float(row["high"])
    assert {row["task"] for row in table(house, "SELECT task FROM evaluation_tasks")} == {"digits"}
    kept = house.run_folder("one") / "checkpoints"
    assert (kept / "best.pt").samefile(kept / f"round-{int(best['round']):06d}.pt")


@pytest.mark.nightly
def test_killed_run_goes_on_to_the_same_evaluations(house: House) -> None:
    house.spawn("whole", "--rounds", "4", *EVALUATED)
    eventually(lambda: house.processes[0].poll() is not None)
    process = house.spawn("killed", "--rounds", "4", *EVALUATED, "--set", "task.batches_per_epoch=3")
    eventually(lambda: house.journal("killed", "checkpoint.saved") or process.poll() is not None, every=0.01)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        house.spawn("killed", "--resume", "killed", "--rounds", "4")
        eventually(lambda: house.processes[-1].poll() is not None)
    assert evaluations(house, "killed") == evaluations(house, "whole")
    assert len(evaluations(house, "whole")) == len(POLICIES)
