"""Seeds of a run that was killed and rolled back are counted alike by all that count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.seed_counting import count_seeds
from tests.trainer import journals

from .conftest import House, eventually

SICK = (
    "policy.kind=random",
    "envs.count=8",
    "episode_epochs=24",
    "task.batches_per_epoch=2",
    "host.learning_rate=0.8",
    "governor.divergence_ratio=1.0",
    "governor.divergence_sigmas=0.3",
    "governor.divergence_epochs=1",
    "checkpoint.every_seconds=1",
)
"""Hosts whose losses jump, and a governor that puts them back at once."""


@pytest.mark.slow
def test_all_count_the_same_seeds_after_kills_and_rollbacks(house: House) -> None:
    sets = [word for item in SICK for word in ("--set", item)]
    process = house.spawn("r", "--rounds", "1000", *sets)
    for boot in range(1, 4):
        begun, saved = len(house.journal("r", "epoch")), len(house.journal("r", "checkpoint.saved"))
        eventually(lambda: len(house.journal("r", "epoch")) > begun + 60, every=0.02)  # noqa: B023
        eventually(lambda: _was_saved_amid_an_episode(house, saved), every=0.02)  # noqa: B023
        process.kill()
        process.wait()
        newest = max(event["ctx"]["round"] for event in house.journal("r", "round.started"))
        rounds = "1000" if boot < 3 else str(newest + 1)
        process = house.spawn("r", "--resume", "r", "--rounds", rounds)
    assert process.wait(300) == 0
    rewinds = house.journal("r", "run.rewound")
    assert len(rewinds) == 3
    assert any(one["data"]["epoch"] for one in rewinds), "a boot goes on in the midst of an episode"
    ends = count_seeds(house.run_folder("r") / "events.jsonl")
    assert ends["DORMANT"] > 3
    assert ends["PRUNED"] > 30
    assert len(house.journal("r", "seed.ended")) >= ends.total()


def test_nothing_is_counted_before_a_round_has_ended(tmp_path: Path) -> None:
    run = journals.write_run(tmp_path, "r", [journals.started("b1"), journals.round_started(1)])
    run.release()
    assert not count_seeds(run.events)


def _was_saved_amid_an_episode(house: House, saved: int) -> bool:
    """Whether this boot has saved, and its newest checkpoint lies within an episode."""
    saves = house.journal("r", "checkpoint.saved")
    return len(saves) > saved and 0 < saves[-1]["ctx"]["epoch"] < 23
