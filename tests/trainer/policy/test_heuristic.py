"""The rule that acts as a person would: each of its choices, and a whole episode on real hosts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import ALPHA_TARGETS, HEAD_NAMES, Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.observation import NUM_HISTORY_EPOCHS
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.seeds.table import SlotTable
from tests.trainer.test_governor import play

torch.set_num_threads(1)
CONFIG = settings.load(sets=["envs.count=1", "ppo.minibatches=1", "policy.kind=heuristic"])
S = 3


def choose(table: SlotTable, accuracies: list[float], config: settings.Config = CONFIG) -> dict[str, int]:
    """What it does after epochs with those accuracies, the slots being as in `table` (N = 1)."""
    agent, lifecycle = Agent(config, slots=S, host_parameters=274), Lifecycle(config)
    measurements = Measurements.unmeasured(1, S)
    measurements.seed_grad_norm = torch.ones(1, S)
    measurements.seed_health = torch.ones(1, S)
    actions: Tensor = torch.empty(0)
    for epoch, accuracy in enumerate(accuracies):
        measurements.val_accuracy = torch.tensor([accuracy])
        actions = agent.act(table, measurements, lifecycle.legal(table, measurements), epoch).actions[0]
    return dict(zip(HEAD_NAMES, actions.tolist(), strict=True))


STILL = [0.3] * (NUM_HISTORY_EPOCHS + 2)
RISING = [0.1, 0.3, 0.5, 0.6, 0.7]


def with_seed(stage: Stage, **columns: float) -> SlotTable:
    table = SlotTable.empty(1, S)
    table.stage[0, 1], table.blueprint[0, 1] = stage, 0
    for name, value in columns.items():
        getattr(table, name)[0, 1] = value
    return table


def test_it_plants_where_the_host_stands_still_and_nowhere_else() -> None:
    chosen = choose(SlotTable.empty(1, S), STILL)
    assert (chosen["op"], chosen["slot"]) == (Op.GERMINATE, 0)
    assert CONFIG.seeds.blueprints[chosen["blueprint"]] == "conv_light"
    assert choose(SlotTable.empty(1, S), RISING)["op"] == Op.WAIT
    assert choose(SlotTable.empty(1, S), STILL[:NUM_HISTORY_EPOCHS])["op"] == Op.WAIT, (
        "too little was seen to judge"
    )
    assert choose(with_seed(Stage.TRAINING), STILL)["op"] == Op.WAIT, "one at a time"
    assert choose(SlotTable.empty(1, S), STILL + [0.3] * 16)["op"] == Op.WAIT, "too late"


@pytest.mark.parametrize(
    ("table", "op"),
    [
        (with_seed(Stage.TRAINING, epochs_in_stage=2), Op.ADVANCE),
        (with_seed(Stage.BLENDING, alpha=0.3), Op.SET_ALPHA),
        (with_seed(Stage.BLENDING, alpha=0.3, ramp_epochs=3, ramp_done=1), Op.WAIT),
        (with_seed(Stage.HOLDING, alpha=1.0, contribution=0.1), Op.FOSSILIZE),
        (with_seed(Stage.HOLDING, alpha=1.0, contribution=-0.1), Op.PRUNE),
        (with_seed(Stage.HOLDING, alpha=1.0), Op.WAIT),
        (with_seed(Stage.FOSSILIZED, alpha=1.0, contribution=-0.1), Op.WAIT),
    ],
    ids=lambda value: value.name if isinstance(value, Op) else "",
)
def test_what_it_does_with_a_seed(table: SlotTable, op: Op) -> None:
    chosen = choose(table, RISING)
    assert chosen["op"] == op
    if op != Op.WAIT:
        assert chosen["slot"] == 1
    if op == Op.SET_ALPHA:
        assert ALPHA_TARGETS[chosen["alpha_target"]] == 1.0


def test_a_seed_that_may_never_blend_is_given_up() -> None:
    config = settings.load(
        sets=["envs.count=1", "ppo.minibatches=1", "policy.kind=heuristic", "seeds.min_training_epochs=20"]
    )
    for epochs, op in ((5, Op.WAIT), (6, Op.PRUNE)):
        assert choose(with_seed(Stage.TRAINING, epochs_in_stage=epochs), RISING, config)["op"] == op


@pytest.mark.slow
def test_on_the_default_task_it_fossilises_and_beats_not_growing() -> None:
    accuracy = {}
    for kind in ("heuristic", "no_growth"):
        config = settings.load(sets=["envs.count=4", f"policy.kind={kind}"])
        trainer, frames = play(config=config)
        accuracy[kind] = frames[-1]["val_accuracy"]
        kept = (trainer.table.stage == Stage.FOSSILIZED).any(1)
        assert kept.all() == (kind == "heuristic")
    assert (accuracy["heuristic"] > accuracy["no_growth"]).all()
    assert np.mean(accuracy["heuristic"]) > np.mean(accuracy["no_growth"]) + 0.25
