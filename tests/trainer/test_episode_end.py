"""A checkpoint between an episode's last epoch and its update goes on with test and update."""

from __future__ import annotations

import torch

from trainer.data.registry import load
from trainer.loop import Trainer

from .test_governor import CONFIG, CPU, play


def test_resuming_at_the_end_of_an_episode_tests_and_learns_the_same() -> None:
    whole, _ = play()
    state = whole.state_dict()
    resumed = Trainer(CONFIG, load("digits"), CPU)
    resumed.load_state_dict(state)
    assert resumed.epoch == CONFIG.episode_epochs
    for mine, theirs in zip(resumed.population.test(), whole.population.test(), strict=True):
        assert torch.equal(mine, theirs)
