"""A run that begins with another one's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import House, eventually, open_house
from .courses import assert_same, course

OF_THE_BOOT = ("run.", "checkpoint.", "log", "system", "command.", "telemetry.", "postmortem.", "journal.")


def second_round(house: House, name: str) -> dict[str, list[Any]]:
    """What a run tells of its second round."""
    told = course(house, name, OF_THE_BOOT)
    return {stream: [event for event in events if event[1]["round"] == 2] for stream, events in told.items()}


def train_first(house: House) -> House:
    assert house.start("first", "--rounds", "2", "--set", "episode_epochs=6").wait(300) == 0
    return house


@pytest.fixture(scope="module")
def house_with_run() -> Iterator[House]:
    """One for all: what is forked stays as it is."""
    with open_house() as house:
        yield train_first(house)


@pytest.mark.slow
def test_fork_without_changes_trains_what_the_other_trained(house_with_run: House) -> None:
    house = house_with_run
    done = house.daemon("start", "again", "--fork", "first@1", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert {e["ctx"]["round"] for e in house.journal("again", "epoch")} == {2}
    assert_same(second_round(house, "first"), second_round(house, "again"))
    (row,) = house.ask("runs", "--where", "name = 'again'", "--columns", "name,parent")
    assert row["parent"] == "first@round-000001"


@pytest.mark.slow
def test_fork_has_the_options_that_are_given(house_with_run: House) -> None:
    house = house_with_run
    words = ("ppo.learning_rate=2e-4", "host.learning_rate=0.003", "reward.rent=0.3", "ppo.clip=0.1")
    sets = [word for item in words for word in ("--set", item)]
    house.spawn("other", "--fork", "first@1", "--rounds", "0", *sets, small=False)
    values = {row["key"]: row["value"] for row in house.ask("param", "other")}
    for word in words[:3]:
        key, _, value = word.partition("=")
        assert values[key] == float(value)
    eventually(lambda: house.journal("other", "ppo.update"))
    assert house.journal("other", "param.changed") == []
    assert house.daemon("stop", "other").returncode == 0
    changed, same = (house.journal(name, "ppo.update") for name in ("other", "first"))
    assert changed[0]["data"]["learning_rate"] == 2e-4 != same[1]["data"]["learning_rate"]


@pytest.mark.slow
def test_killed_fork_goes_on_from_where_it_began(house: House) -> None:
    train_first(house)
    process = house.spawn("cut", "--fork", "first@1", "--rounds", "2", small=False)
    if process.poll() is None:
        process.kill()
        process.wait()
    for name in ("round-000001.pt", "round-000002.pt", "best.pt"):
        (house.run_folder("first") / "checkpoints" / name).unlink()
    assert house.daemon("start", "cut", "--fork", "first@1", "--or-resume", "--rounds", "2").returncode == 0
    assert {e["ctx"]["round"] for e in house.journal("cut", "epoch")} == {2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--fork", "first@1", "--set", "policy.hidden=16"), 10, "was made with policy.hidden = "),
        (("--fork", "first@9"), 10, "no checkpoint 9 in"),
        (("--fork", "first@"), 2, "write RUN or RUN@WHICH"),
        (("--fork", "nothing"), 3, "no run nothing"),
        (("--fork", "first", "--preset", "digits"), 2, "--set changes them, nothing else does"),
    ],
)
def test_refused_fork_is_one_line_and_leaves_nothing(
    house_with_run: House, words: tuple[str, ...], code: int, part: str
) -> None:
    refused = house_with_run.daemon("start", "never", *words)
    assert (refused.returncode, part in refused.stderr) == (code, True), refused.stderr
    assert not house_with_run.run_folder("never").exists()


@pytest.mark.slow
def test_weight_of_the_reward_waits_for_a_round(house: House) -> None:
    house.spawn("r", "--rounds", "0", "--set", "episode_epochs=24")
    eventually(lambda: any(e["ctx"]["epoch"] in range(2, 20) for e in house.journal("r", "epoch")))
    saved = house.ask("checkpoint", "r", "--tag", "mid", "--wait")
    assert house.daemon("stop", "r").returncode == 0
    (path,) = (house.run_folder("r") / "checkpoints").glob("*-mid.pt")
    refused = house.daemon("start", "never", "--fork", "r@mid", "--set", "reward.rent=0.3")
    if "epoch" in path.name:
        assert refused.returncode == 10, json.dumps(saved)
        assert "reward.rent can change between two rounds only" in refused.stderr
