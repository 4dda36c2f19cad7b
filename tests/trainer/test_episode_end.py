"""A checkpoint between an episode's last epoch and its update goes on with test and update."""

from __future__ import annotations

import torch

from protocol.messages.vocabulary import Stage
from trainer.data.registry import load
from trainer.governor import RollbackReason
from trainer.loop import Trainer

from .test_governor import CONFIG, CPU, play, poison


def test_resume_at_episode_end_learns_the_same() -> None:
    check(play()[0])


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
