"""What rank 0 tells of a run that is changed, paused and resumed while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.messages.events import EpisodeFinished, EpochFinished, RoundFinished
from tests.trainer.control.test_commands import Rig, command

torch.set_num_threads(1)
LIVELY = ("policy.kind=random", "seed=1")
"""Hosts that have seeds at their end."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*sets: str, **options: Any) -> Rig:
        for one in made:
            one.close()
        made[:] = []
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
        one = rig(*LIVELY, resumed=True)
        one.play({})
        episodes += one.told(EpisodeFinished)
    growth = np.array([e.added_parameters for e in episodes]) / one.trainer.population.parameters_host
    tested = np.array([e.test_accuracy for e in episodes])
    rent = np.repeat([0.01, 0.5], 4)
    found = np.concatenate([reported for _, reported in one.daemon.recorder.state_dict()["returns"]])
    np.testing.assert_allclose(found, tested - rent * growth, atol=1e-6)
    assert growth[4:].any()


@pytest.mark.parametrize("epoch", [2, 6])
def test_pause_is_in_no_seconds(rig: Callable[..., Rig], epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an episode's middle, and at its end, whose seconds are only the round's."""
    one, days, clock = rig(), 1e7, time.perf_counter
    shift = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + shift)
    mailbox = one.daemon.server.mailbox

    def wait(_timeout: float) -> None:
        nonlocal shift
        shift += days
        mailbox.put(command("resume"))

    monkeypatch.setattr(mailbox, "wait", wait)
    one.play({(1, epoch): [command("pause")]})
    assert shift == days, "it has waited"
    for told in (*one.told(EpochFinished), *one.told(RoundFinished)):
        assert 0.0 < told.seconds < days / 10
        assert sum(told.phases.values()) <= told.seconds + 1e-6


@pytest.mark.parametrize("until", [4, 6])
def test_resumed_round_tells_the_rate_of_its_boot(rig: Callable[..., Rig], until: int) -> None:
    """Before, the epochs of the complete round were divided by the seconds of what was left of it."""
    rig().play({}, until=(1, until))
    one = rig(resumed=True)
    one.play({})
    trained = [told.env_epochs_per_second * told.seconds for told in one.told(RoundFinished)]
    assert trained == pytest.approx([4 * (6 - until), 4 * 6])
