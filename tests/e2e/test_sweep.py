"""Sweeps with real daemons: every trial a run, pruned by evaluations, gone on with after an interruption."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import DAEMON, SMALL, House

pytest.importorskip("optuna")
pytestmark = pytest.mark.slow

BAD, GOOD = 1e-6, 0.05
"""Learning rates of the hosts; with the first they learn nothing."""
COMMON = (
    *SMALL,
    "envs.threads=1",
    "task.batches_per_epoch=8",
    "evaluation.hosts=4",
    "evaluation.rivals=",
    "evaluation.rounds=2",
)
SETS = [word for item in COMMON for word in ("--set", item)]


def draw_seed(folder: Path) -> int:
    """One of a sweep whose first trial draws GOOD, and the second BAD."""
    from esper_overwatch.trainer.sweep.space import Dimension
    from esper_overwatch.trainer.sweep.study import FINISHED, SweepStudy, SweepTerms

    space = (Dimension("host.learning_rate", choices=(BAD, GOOD)),)
    for seed in range(40):
        terms = SweepTerms(space, "test_accuracy", 1, seed, {})
        study = SweepStudy.create(folder / str(seed), "draws", terms)
        drawn = []
        for _ in range(2):
            trial = study.next_trial(terms)
            drawn.append(trial.options["host.learning_rate"])
            trial.report(2, 0.5)
            trial.end(FINISHED)
        if drawn == [GOOD, BAD]:
            return seed
    raise AssertionError("no seed draws so")


def interrupt(house: House, words: list[str]) -> tuple[int, str]:
    """Send control-C once the first trial was evaluated; exit code, and what was said then."""
    with house.open(*DAEMON, *words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(" after round 2 of " in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    return process.returncode, said


@pytest.mark.slow
def test_sweep_prunes_and_goes_on_after_interruption(house: House, tmp_path: Path) -> None:
    space = tmp_path / "rates.toml"
    space.write_text(f"host.learning_rate = {{choices = [{BAD}, {GOOD}]}}\n")
    seed = str(draw_seed(tmp_path))
    for rounds in (8, 40, 160):  # a busy machine can have trained them all before the signal comes
        shutil.rmtree(house.home, ignore_errors=True)
        words = ["sweep", "--space", str(space), "--trials", "2", "--startup", "1", "--draw-seed", seed]
        words += [*SETS, "--set", f"rounds={rounds}", "--objective", "test_accuracy"]
        code, said = interrupt(house, words)
        trials: list[dict[str, Any]] = house.ask("sweep", "show", "rates")["trials"]
        if code != 0 and len(trials) == 1:
            break
    assert code == 130, said
    line = said.splitlines()[-1]
    assert line.startswith("esper-daemon: interrupted; ")
    assert " keeps the trials, " in line
    assert "; go on with: esper-daemon sweep " in line
    (first,) = trials
    assert first["state"] == "interrupted"
    before = first["evaluations"]
    assert before

    done = house.daemon(*words, "--json", timeout=540)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    first, second = summary["trials"]
    assert first["state"] == "finished"
    assert [int(round_) for round_ in first["evaluations"]] == list(range(2, rounds + 1, 2))
    assert before.items() <= first["evaluations"].items()
    assert first["options"] == {"host.learning_rate": GOOD}
    assert (second["state"], list(second["evaluations"])) == ("pruned", ["2"])
    assert summary["best"] == first
    assert len(house.journal("rates-1", "run.started")) == 2, "it was resumed, not started again"
    _check_what_others_see(house, summary, words)


def _check_what_others_see(house: House, summary: dict[str, Any], words: list[str]) -> None:
    listed = {run["name"]: run["state"] for run in house.ask("list", "--all")}
    assert listed == {"rates-1": "COMPLETED", "rates-2": "STOPPED"}
    found = house.ask("runs", "--where", "parent = 'rates' AND summary.round > 0")
    assert {run["name"] for run in found} == {"rates-1", "rates-2"}
    assert house.ask("sweep", "show", "rates") == summary
    assert house.ask("sweep", "show", summary["folder"]) == summary
    shown = house.daemon("sweep", "show", "rates").stdout.splitlines()
    assert [line.split()[:2] for line in shown[1:3]] == [["rates-1", "finished"], ["rates-2", "pruned"]]
    assert shown[-1].endswith(f"--set host.learning_rate={GOOD}")

    plot = house.home / "rates.svg"
    assert house.daemon("sweep", "show", "rates", "--plot", str(plot)).returncode == 0
    assert all(
        word in plot.read_text() for word in ("host.learning_rate", "test_accuracy", "rates-1, the best")
    )
    assert "ends in .png" in house.daemon("sweep", "show", "rates", "--plot", "rates.gif").stderr

    absent = house.daemon("sweep", "show", "rate")
    assert absent.returncode == 3
    assert "there are: rates" in absent.stderr
    other = house.daemon(*words, "--set", "episode_epochs=7")
    assert other.returncode == 9
    assert "was begun with episode_epochs = 6, now 7" in other.stderr
    assert house.daemon(*words).returncode == 0, "nothing is left to do"
    assert house.ask("sweep", "show", "rates") == summary


def test_trials_that_cannot_start_end_the_sweep(house: House, tmp_path: Path) -> None:
    space = tmp_path / "odd.toml"
    space.write_text("ppo.minibatches = {choices = [64, 128]}\n")
    sets = [word for item in COMMON if "minibatches" not in item for word in ("--set", item)]
    sets += ["--set", "rounds=2"]
    done = house.daemon("sweep", "--space", str(space), "--to", str(tmp_path / "odd"), *sets, timeout=540)
    assert done.returncode == 11, done.stderr
    trials = house.ask("sweep", "show", str(tmp_path / "odd"))["trials"]
    assert [trial["state"] for trial in trials] == ["failed"] * 3
    assert "must not exceed envs.count = 4" in trials[0]["reason"]
