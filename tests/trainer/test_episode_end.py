"""What an episode ends with: told as it is after a rollback, and gone on from by a checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_overwatch.protocol.messages.events import EpisodeFinished, RoundFinished, SeedStage
from esper_overwatch.protocol.messages.vocabulary import WITH_SEED, Stage
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.governor import RollbackReason
from esper_overwatch.trainer.loop import Trainer
from tests.trainer.control.test_commands import Rig

from .test_governor import CONFIG, CPU, play, poison


def test_resume_at_episode_end_learns_the_same() -> None:
    check(play()[0])


@pytest.mark.slow
def test_resume_after_rollback_of_last_epoch_learns_the_same() -> None:
    """Before, the uninterrupted run tested the hosts without the seed that the rollback had given back."""
    last = CONFIG.episode_epochs - 1

    def meddle(trainer: Trainer, epoch: int) -> None:
        table = trainer.table
        if epoch == last - 1:
            table.stage[1, 0], table.blueprint[1, 0], table.alpha[1, 0] = Stage.FOSSILIZED, 3, 1.0
            weight = trainer.population.groups[0].weights["r0c0.conv_light"]
            weight.data[1] = torch.linspace(-1, 1, weight.shape[1])
        if epoch == last:
            table.stage[1, 0] = Stage.PRUNED
            poison(trainer, epoch, at=last)
        table = trainer.table
        trainer.population.set_topology(table.stage, table.blueprint, table.style)

    whole, frames = play(meddle)
    assert frames[-1]["governor.ill"].tolist() == [0, RollbackReason.NAN, 0, 0]
    assert whole.table.stage[1, 0] == Stage.FOSSILIZED
    tested = whole.population.test()[1]
    check(whole)
    whole.table.stage[1, 0] = Stage.DORMANT
    assert whole.population.test()[1][1] != tested[1]


def check(whole: Trainer) -> None:
    state = whole.state_dict()
    resumed = Trainer(CONFIG, load("digits"), CPU)
    resumed.load_state_dict(state)
    assert resumed.epoch == CONFIG.episode_epochs
    for mine, theirs in zip(resumed.population.test(), whole.population.test(), strict=True):
        assert torch.equal(mine, theirs)


LAST = 5
"""The last epoch of the rig's episodes, from 0."""
GROWN = ("policy.kind=random", "rounds=1")


def play_to_a_rollback(folder: Path, *sets: str, until: tuple[int, int] | None = None) -> Rig:
    """A round of a daemon, at whose end env 1 is put back."""
    rig = Rig(folder, *GROWN, *sets)
    run_epoch = rig.trainer.population.run_epoch

    def fail(round_: int, epoch: int, **options: Any) -> Any:
        poison(rig.trainer, epoch, at=LAST)
        return run_epoch(round_, epoch, **options)

    rig.trainer.population.run_epoch = fail  # type: ignore[method-assign]
    rig.play({}, until=until)
    return rig


@pytest.mark.parametrize(("seed", "undone"), [(1, 1), (3, 0), (5, 1)])
def test_rollback_of_last_epoch_is_told_whole(tmp_path: Path, seed: int, undone: int) -> None:
    """Before, it was told by the next decision, of which there is none: seeds stood as they had failed."""
    rig = play_to_a_rollback(tmp_path, f"seed={seed}")
    table, population = rig.trainer.table, rig.trainer.population
    told = {(env, e.slot): e for e, env in rig.events if isinstance(e, SeedStage)}
    stages = [[Stage(code) for code in row] for row in table.stage.tolist()]
    for (env, slot), event in told.items():
        assert env is not None
        assert event.to_stage == stages[env][population.slots.index(slot)].name
    assert {env for (env, _), event in told.items() if event.by == "governor"} <= {1}
    episodes = rig.told(EpisodeFinished)
    assert [e.rollbacks for e in episodes] == [0, 1, 0, 0]
    assert [e.parameters for e in episodes] == population.parameters().tolist()
    for episode, row in zip(episodes, stages, strict=True):
        alive = Counter(stage.name for stage in row if stage in WITH_SEED)
        gone = {Stage.DORMANT.name, Stage.PRUNED.name}
        assert {name: n for name, n in episode.seeds.items() if name not in gone} == alive
    assert [e.seeds.get(Stage.DORMANT.name, 0) for e in episodes] == [0, undone, 0, 0]
    (finished,) = rig.told(RoundFinished)
    assert finished.parameters_mean == sum(e.parameters for e in episodes) / 4
    rig.close()


@pytest.mark.parametrize("fossils", [False, True], ids=["all seeds", "only fossilized"])
def test_parameters_of_a_rollback_are_of_what_is_tested(tmp_path: Path, fossils: bool) -> None:
    rig = play_to_a_rollback(tmp_path, f"reward.only_fossilized={str(fossils).lower()}", "seed=3")
    population = rig.trainer.population
    told = [e.parameters for e in rig.told(EpisodeFinished)]
    assert told == population.tested_parameters().tolist()
    assert (told == population.parameters().tolist()) is not fossils
    rig.close()


@pytest.mark.slow
def test_resume_behind_rolled_back_epoch_tells_the_same(tmp_path: Path) -> None:
    whole = play_to_a_rollback(tmp_path / "whole", "seed=1")
    expected = whole.told(EpisodeFinished)
    whole.close()
    play_to_a_rollback(tmp_path / "cut", "seed=1", until=(1, LAST + 1)).close()
    again = Rig(tmp_path / "cut", *GROWN, "seed=1", resumed=True)
    again.play({})
    assert again.told(EpisodeFinished) == expected
    again.close()
