"""Every mode pays a real episode: what is told adds up to what PPO learns from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainer.test_governor import SETS, play
from trainer import settings
from trainer.reward.modes import MODES


@pytest.mark.parametrize("mode", sorted(MODES))
def test_components_sum_to_the_reward_of_every_epoch(mode: str) -> None:
    config = settings.load(sets=[*SETS, f"reward.mode={mode}", "policy.kind=random"])
    trainer, frames = play(config=config)
    outcomes = [frame for frame in frames if "reward" in frame]
    assert len(outcomes) == config.episode_epochs
    for epoch, frame in enumerate(outcomes):
        components = np.stack([values for name, values in frame.items() if name.startswith("reward.")])
        np.testing.assert_allclose(components.sum(0), frame["reward"], atol=1e-6)
        np.testing.assert_array_equal(trainer.rollout.reward[epoch].numpy(), frame["reward"])
    assert any(frame["reward.rent"].any() for frame in outcomes)
