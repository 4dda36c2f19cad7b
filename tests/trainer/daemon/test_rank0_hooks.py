"""What rank 0 tells of a run that is changed, paused and resumed while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.messages.events import EpisodeFinished
from tests.trainer.control.test_commands import Rig, command

torch.set_num_threads(1)
LIVELY = ("policy.kind=random", "seed=1")
"""Hosts that have seeds at their end."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*sets: str, **options: Any) -> Rig:
        made.append(Rig(tmp_path, *sets, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("cut", [False, True], ids=["in one boot", "resumed"])
def test_returns_are_compared_with_the_rent_in_force(rig: Callable[..., Rig], cut: bool) -> None:
    """Before, what they are compared with was less the configured rent, whatever was set since."""
    one = rig(*LIVELY)
    until = (2, 3) if cut else None
    one.play({(1, 4): [command("param.set", key="reward.rent", value=0.5)]}, until=until)
    episodes = one.told(EpisodeFinished)
    if cut:
        one.close()
        one = rig(*LIVELY, resumed=True)
        one.play({})
        episodes += one.told(EpisodeFinished)
    growth = np.array([e.added_parameters for e in episodes]) / one.trainer.population.parameters_host
    tested = np.array([e.test_accuracy for e in episodes])
    rent = np.repeat([0.01, 0.5], 4)
    found = np.concatenate([reported for _, reported in one.daemon.recorder.state_dict()["returns"]])
    np.testing.assert_allclose(found, tested - rent * growth, atol=1e-6)
    assert growth[4:].any()
