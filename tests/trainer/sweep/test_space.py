"""Spaces: every form, and what is wrong with one, a line each, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.trainer.sweep.space import Dimension, SpaceError, read_space
from tests.trainer.command import esper

SETS = ("--set", "rounds=4", "--set", "evaluation.rounds=2")


def space_file(folder: Path, text: str) -> Path:
    file = folder / "tuning.toml"
    file.write_text(text, encoding="utf-8")
    return file


def problems_of(folder: Path, text: str, **how: Any) -> tuple[str, ...]:
    with pytest.raises(SpaceError) as caught:
        read_space(space_file(folder, text), **how)
    return caught.value.problems


def test_each_form_becomes_a_dimension(tmp_path: Path) -> None:
    text = """
    "host.learning_rate" = {choices = [0.01, 0.1]}
    ppo.learning_rate = {low = 1e-4, high = 1e-2, log = true}
    [policy]
    hidden = {low = 16, high = 64, step = 16}
    learn = {choices = [true, false]}
    [host]
    channels = {choices = [[4, 8], [8, 16]]}
    """
    assert read_space(space_file(tmp_path, text)) == (
        Dimension("host.learning_rate", choices=(0.01, 0.1)),
        Dimension("ppo.learning_rate", 1e-4, 1e-2, log=True),
        Dimension("policy.hidden", 16, 64, is_whole=True, step=16),
        Dimension("policy.learn", choices=(True, False)),
        Dimension("host.channels", choices=("4,8", "8,16")),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ppo.learning_rat = {low = 0.1, high = 0.2}", "unknown key ppo.learning_rat; did you mean"),
        ("ppo = 3", "unknown key ppo"),
        ("ppo.learning_rate = {low = 0.1, high = 0.01}", "low = 0.1 must be below high = 0.01"),
        ("ppo.learning_rate = {low = 0.1, high = 0.1}", "low = 0.1 must be below high = 0.1"),
        ("ppo.learning_rate = {low = 0.1}", "high is missing"),
        ("ppo.learning_rate = {low = 0.1, high = 7.0}", "ppo.learning_rate = 7.0: must be a number from"),
        ("ppo.learning_rate = {low = 'small', high = 1}", "low = 'small': must be a number"),
        ("ppo.learning_rate = {low = nan, high = 1}", "low = nan: must be a number"),
        ("ppo.learning_rate = {low = 0.0, high = 0.1, log = true}", "must be above 0 where log = true"),
        ("ppo.learning_rate = {low = 0.1, high = 0.2, log = 1}", "log = 1: must be true or false"),
        ("ppo.learning_rate = {low = 0.1, high = 0.2, logs = true}", "logs is not known"),
        ("ppo.learning_rate = 0.1", "what is fixed goes to --set"),
        ("envs.count = {low = 1.5, high = 4}", "envs.count = 1.5: must be an integer"),
        ("envs.count = {low = 1, high = 8, step = 0.5}", "step = 0.5: must be an integer above 0"),
        (
            "envs.count = {low = 1, high = 8, step = 2}",
            "high = 8 cannot be reached from low = 1 in steps of 2",
        ),
        ("envs.count = {low = 1, high = 9, step = 2, log = true}", "log and step exclude each other"),
        ("envs.count = {choices = [2, 0]}", "envs.count = 0: must be an integer from 1"),
        ("envs.count = {choices = [2, 2]}", "2 is named twice"),
        ("envs.count = {choices = [2]}", "a list of two values or more"),
        ("envs.count = {choices = [2, 4], low = 1}", "choices stand alone"),
        ("policy.kind = {choices = ['ppo', 'magic']}", "policy.kind = 'magic': must be one of"),
        ("policy.kind = {low = 1, high = 2}", "has no range"),
        ("policy.learn = {low = 0, high = 1}", "has no range"),
        ("rounds = {choices = [10, 20]}", "is the same for all trials"),
        ("evaluation.seed = {low = 1, high = 9}", "is the same for all trials"),
        ("reward.rent = {low = 0.1, high = 0.2}", "changes what the return means"),
        ("ppo.gamma = {low = 0.9, high = 1.0}", "changes what the return means"),
        ("", "names no option"),
        ("= 3", "is not TOML"),
    ],
)
def test_wrong_space_is_told_in_one_line(tmp_path: Path, line: str, said: str) -> None:
    (problem,) = problems_of(tmp_path, line)
    assert said in problem
    assert problem.startswith(f"{tmp_path / 'tuning.toml'}: ")
    assert "\n" not in problem


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    lines = "seed = 3\nenvs.count = {choices = [0, 1]}\nppo.learning_rate = {low = 1e-4, high = 1e-2}\nx = 1"
    assert len(problems_of(tmp_path, lines)) == 3


def test_option_named_in_two_spellings_is_refused(tmp_path: Path) -> None:
    text = '"envs.count" = {choices = [2, 4]}\nenvs.count = {choices = [2, 8]}'
    (problem,) = problems_of(tmp_path, text)
    assert "envs.count: is named twice" in problem


def test_option_given_for_all_trials_cannot_vary(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "envs.count = {choices = [2, 4]}", fixed=["envs.count"])
    assert "is given for all trials, too" in problem


def test_reward_varies_where_accuracy_is_compared(tmp_path: Path) -> None:
    file = space_file(tmp_path, "reward.rent = {low = 0.1, high = 0.2}")
    assert [one.key for one in read_space(file, "test_accuracy")] == ["reward.rent"]


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="cannot be read"):
        read_space(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("--set", "rounds=4"), "evaluation.rounds = 0: trials are judged by evaluations"),
        (("--set", "evaluation.rounds=2"), "rounds = 0: trials train without end"),
        (
            ("--set", "evaluation.rounds=2", "--set", "rounds=1"),
            "evaluated; evaluation.rounds = 2, so set rounds to 2 or more",
        ),
        ((*SETS, "--set", "envs.count=2"), "envs.count: is given for all trials, too"),
        ((*SETS, "--name", "a b"), "is not a name for a run"),
    ],
)
def test_wrong_call_starts_nothing(tmp_path: Path, home: Path, sets: tuple[str, ...], said: str) -> None:
    file = space_file(tmp_path, "envs.count = {choices = [2, 4]}")
    result = esper("sweep", "--space", str(file), *sets)
    assert result.exit_code in (2, 9)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not home.exists()


def test_fixed_options_may_need_what_the_trials_draw(tmp_path: Path) -> None:
    file = space_file(tmp_path, "ppo.entropy_rounds = {choices = [0, 9]}")
    words = ["sweep", "--space", str(file), "--set", "ppo.entropy_final=0.01"]
    assert "trials are judged by evaluations" in esper(*words).stderr
    file = space_file(tmp_path, "ppo.clip = {low = 0.1, high = 0.2}")
    assert "ppo.entropy_final (--set): is for" in esper(*words).stderr
