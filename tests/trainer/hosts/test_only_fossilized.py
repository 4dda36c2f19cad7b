"""`reward.only_fossilized`: at an episode's end hosts count without seeds that have not fossilised."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Stage
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds.table import is_in
from tests.cases import nightly
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
DATA = tiny()
HOSTS: dict[str, dict[str, Any]] = {
    "cnn": {},
    "resnet": {"host__family": "resnet", "host__blocks": 2},
}
ENVS = list(range(20))


def population(host: str, **changes: Any) -> Population:
    made = Population(config(len(ENVS), envs__group_size=8, **HOSTS[host], **changes), DATA, "cpu")
    plant(made, rows(every_state(), ENVS))
    return made


def fossils_by_hand(made: Population) -> Topology:
    """Leave nothing but fossils in the table; the topology of that."""
    table = made.table
    gone = table.stage != Stage.FOSSILIZED
    table.stage[gone] = int(Stage.DORMANT)
    table.blueprint[gone] = -1
    table.alpha[gone] = 0.0
    return Topology.of(table.stage, table.blueprint, table.style)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["cnn", *(nightly(host) for host in sorted(HOSTS) if host != "cnn")])
def test_final_figures_are_those_of_host_and_fossils(host: str) -> None:
    made, plain = (population(host, reward__only_fossilized=on) for on in (True, False))
    stage = made.table.stage.clone()
    found = made.run_epoch(1, 11).measurements
    usual = plain.run_epoch(1, 11).measurements
    weights, others = (p.state_dict()["weights"] for p in (made, plain))
    assert all(torch.equal(weights[name], others[name]) for name in weights), "they train alike"
    assert torch.equal(made.table.stage, stage), "and nothing is removed from the table"
    assert not torch.equal(found.val_loss, usual.val_loss)
    assert torch.equal(found.seed_parameters, usual.seed_parameters)

    topology = fossils_by_hand(plain)
    scores = [
        group.validate(1, 11, topology.rows(a, b))
        for group, (a, b) in zip(plain.groups, plain._spans, strict=True)
    ]
    assert torch.equal(found.val_accuracy, torch.cat([s.accuracy for s in scores]))
    assert torch.equal(found.val_loss, torch.cat([s.loss for s in scores]))
    torch.testing.assert_close(
        found.contribution, torch.cat([s.contribution for s in scores]), equal_nan=True, atol=0, rtol=0
    )
    assert torch.equal(found.parameters, plain.parameters().float())
    for mine, theirs in zip(made.test(), plain.test(), strict=True):
        assert torch.equal(mine, theirs)
    mine, theirs = made.shapley(1), plain.shapley(1)
    assert (~torch.from_numpy(mine.value).isnan() == (stage == Stage.FOSSILIZED)).all()
    torch.testing.assert_close(mine.value, theirs.value, equal_nan=True, atol=0, rtol=0)


@pytest.mark.slow
def test_only_the_last_epochs_leave_seeds_out() -> None:
    made, plain = (
        population("cnn", reward__only_fossilized=on, reward__final_epochs=2) for on in (True, False)
    )

    def run(epoch: int) -> tuple[Measurements, Measurements]:
        return made.run_epoch(1, epoch).measurements, plain.run_epoch(1, epoch).measurements

    mine, theirs = run(9)
    assert torch.equal(mine.val_loss, theirs.val_loss)
    assert torch.equal(mine.parameters, theirs.parameters)
    blended = is_in(made.table.stage, BLENDED) & (made.table.stage != Stage.FOSSILIZED)
    assert blended.any()
    for epoch in (10, 11):
        mine, theirs = run(epoch)
        assert torch.equal(mine.train_loss, theirs.train_loss)
        assert not torch.equal(mine.val_loss, theirs.val_loss)
        assert mine.contribution[blended].isnan().all()
        assert (mine.parameters < theirs.parameters).any()
    assert not made.table.contribution[blended].isnan().all(), "what was measured before is kept"
