"""Hosts with several rows of slots; that they train as modules do is in the tests of each architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.hosts.population import Population
from tests.cases import nightly
from tests.trainer.hosts.plots import config, tiny
from tests.trainer.test_governor import SETS, play

torch.set_num_threads(1)


def fresh(**changes: Any) -> Population:
    cfg = config(3, envs__convolution="grouped", envs__group_size=3, **changes)
    population = Population(cfg, tiny(), "cpu")
    population.begin_episode(1)
    table = population.table
    population.set_topology(table.stage, table.blueprint, table.style)
    return population


@pytest.mark.parametrize("family", ["cnn", "resnet"])
def test_empty_rows_change_no_bit_of_a_host(family: str) -> None:
    one, three = (fresh(host__family=family, host__slot_rows=rows) for rows in (1, 3))
    for epoch in range(2):
        alone, rowed = (population.run_epoch(1, epoch).measurements for population in (one, three))
        for name in ("train_loss", "val_loss", "val_accuracy", "host_grad_norm", "parameters"):
            assert torch.equal(getattr(alone, name), getattr(rowed, name)), name
    assert three.slots == [f"r{row}c{column}" for column in range(3) for row in range(3)]
    one.close()
    three.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", nightly("heuristic"), nightly("fixed")])
def test_every_policy_grows_in_both_rows(kind: str) -> None:
    more = [f"policy.kind={kind}", "episode_epochs=24", "envs.convolution=grouped", "host.slot_rows=2"]
    trainer, frames = play(config=settings.load(sets=[*SETS, *more]))
    assert trainer.population.slots == ["r0c0", "r1c0", "r0c1", "r1c1"]
    stages = np.stack([frame["stage"] for frame in frames if "stage" in frame])
    rule = kind in ("fixed", "heuristic")
    kept = (stages == Stage.FOSSILIZED).any((0, 1)) if rule else (stages == Stage.BLENDING).any((0, 1))
    assert kept[:2].all(), "a rule begins with the first slots of the path"
    assert rule or kept.all()
