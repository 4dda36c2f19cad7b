"""`esper-daemon diff` of runs whose journals were written by the real codec, and of published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev
from tests.trainer.command import esper
from tests.trainer.journals import Told, at, round_finished, started, write_run

CHANGED = ["diff --git a/train.py b/train.py", "--- a/train.py", "+++ b/train.py", "-RATE = 1", "+RATE = 2"]


def begin(config: dict[str, Any] | None = None, **changes: Any) -> Told:
    event, ctx = started("b", **changes)
    assert isinstance(event, ev.RunStarted)
    return replace(event, config=config or {"seed": 1, "ppo": {"clip": 0.2}}), ctx


def told(**changes: Any) -> Told:
    event = ev.RunProvenance(
        commit="c1",
        dirty=False,
        command=["python", "train.py"],
        folder="/work",
        python="CPython 3.11.9",
        executable="/bin/python",
        packages={"esper-overwatch": "0", "torch": "2", "numpy": "2.3"},
        environment={"OMP_NUM_THREADS": "4"},
    )
    return replace(event, **changes), at(0, 0)


def write(home: Path, name: str, *events: Told) -> None:
    write_run(home, name, events).release()


def diff(*words: str) -> Result:
    return esper("diff", *words)


def rows(*words: str) -> list[tuple[str, str, Any, Any]]:
    result = diff(*words, "--json")
    assert result.exit_code == 0, result.output
    return [(d["section"], d["name"], d["a"], d["b"]) for d in json.loads(result.stdout)["differences"]]


def test_equal_runs_say_so_in_one_line(home: Path) -> None:
    """Their names stand in their command lines, and nothing else is of their own."""
    for name in ("one", "two"):
        words = ["esper-daemon", "start", name]
        write(home, name, begin(), told(command=words), round_finished(1))
    result = diff("one", "two")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one and two do not differ\n", "")


def test_each_difference_is_named_and_nothing_else(home: Path) -> None:
    write(home, "one", begin(), told(), round_finished(1))
    other = told(
        commit="c2",
        dirty=True,
        diff=CHANGED,
        command=["python", "train.py", "--rate 2"],
        python="CPython 3.12.1",
        packages={"esper-overwatch": "0", "torch": "2", "scipy": "1.16"},
        environment={"OMP_NUM_THREADS": "8"},
    )
    write(home, "two", begin({"seed": 1, "ppo": {"clip": 0.3}}), other, round_finished(2, accuracy=0.75))
    result = diff("one", "two")
    assert result.stdout.splitlines() == [
        "one -> two",
        "configuration:",
        "  ppo.clip: 0.2 -> 0.3",
        "code:",
        "  commit: c1 -> c2",
        "  dirty: no -> yes",
        "  changes of train.py: -- -> +1 -1",
        "command line:",
        "  words: python train.py -> python train.py '--rate 2'",
        "interpreter:",
        "  version: CPython 3.11.9 -> CPython 3.12.1",
        "packages:",
        "  numpy: 2.3 -> --",
        "  scipy: -- -> 1.16",
        "environment:",
        "  OMP_NUM_THREADS: 4 -> 8",
        "result:",
        "  round: 1 -> 2",
        "  accuracy: 0.5 -> 0.75",
        "  best accuracy: 0.5 -> 0.75",
    ]
    assert ("code", "changes of train.py", None, CHANGED) in rows("one", "two")


def test_runs_of_older_versions_are_compared_in_the_rest(home: Path) -> None:
    write(home, "old", begin(), round_finished(1))
    write(home, "new", begin(), told(), round_finished(1))
    result = diff("old", "new")
    assert result.exit_code == 0
    assert result.stdout == "old and new do not differ in what could be compared\n"
    assert "run old does not say what it runs" in result.stderr


def test_code_that_is_not_known_is_not_compared(home: Path) -> None:
    write(home, "one", begin(), told())
    write(home, "two", begin(), told(commit="", dirty=None, code_missing="git is not installed"))
    result = diff("one", "two")
    assert "two does not say its code, which is not compared: git is not installed" in result.stderr
    write(home, "cut", begin(), told(dirty=True, diff=CHANGED, diff_cut=True))
    assert "cut has changed more of its code than is kept" in diff("one", "cut").stderr


def test_newest_boot_counts_and_void_rounds_do_not(home: Path) -> None:
    write(home, "one", begin(), told(), round_finished(1))
    back = ev.RunRewound(round=2, epoch=0, from_round=2, from_epoch=3, last={"life": 4})
    first = [begin({"seed": 7}), told(commit="older"), round_finished(1), round_finished(2, accuracy=0.9)]
    write(home, "two", *first, begin(resumed_round=1), (back, at(1, 0)), told())
    assert rows("one", "two") == []


def test_published_runs_differ_in_their_last_values(home: Path) -> None:
    for name, loss in (("one", 0.5), ("two", 0.25)):
        with publish(name, config={"lr": loss}) as run:
            run.log(loss=9.0, accuracy=0.5)
            run.log(loss=loss)
            run.log(bad=float("nan"))
            run.summary["best"] = name
    assert rows("one", "two") == [
        ("configuration", "lr", 0.5, 0.25),
        ("result", "loss", 0.5, 0.25),
        ("result", "best", "one", "two"),
    ]


def test_runs_that_are_not_there_have_the_codes_of_others(home: Path) -> None:
    write(home, "one", begin())
    for other, code in (("none", 3), ("tcp://box:5555", 3)):
        result = diff("one", other)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    write(home, "empty")
    assert diff("one", "empty").exit_code == 10
    assert diff("one").exit_code == 2
