"""What would undo a host at once is masked, not executed and told; for a while, or as long as it is so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import ALPHA_SPEEDS, HEAD_NAMES, Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.seed_options import GovernorConfig
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.governor import Governor, RollbackReason, VetoReason
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.rollout import Decision
from esper_overwatch.trainer.telemetry.epoch_events import veto_events
from esper_overwatch.trainer.telemetry.transfer import HostFrame
from tests.trainer.test_governor import CONFIG, CPU, Silent, measurements

torch.set_num_threads(1)
PRUNED_AT = 16
DEPENDENT = [
    "policy.kind=fixed",
    "envs.count=2",
    "ppo.minibatches=2",
    "envs.group_size=2",
    "envs.threads=1",
    "envs.convolution=grouped",
    "host.channels=8,8",
    "episode_epochs=18",
    "seed=2",
]
"""Pointwise hosts that cannot do without the seed of their first slot once they have it."""


class Pruning:
    """The fixed policy, fossilising nothing; at one epoch it prunes the first slot, allowed or not."""

    def __init__(self, trainer: Trainer) -> None:
        self._act = trainer.agent.act
        trainer.agent.act = self  # type: ignore[method-assign, assignment]

    def __call__(self, table: Any, seen: Any, legal: Tensor, epoch: int) -> Decision:
        decision = self._act(table, seen, legal, epoch)
        decision.actions[decision.actions[:, 0] == Op.FOSSILIZE] = 0
        if epoch == PRUNED_AT:
            decision.actions.zero_()
            decision.actions[:, 0] = int(Op.PRUNE)
            decision.actions[:, HEAD_NAMES.index("alpha_speed")] = ALPHA_SPEEDS.index(0)
        return decision


def play(*sets: str) -> tuple[Trainer, list[HostFrame]]:
    trainer = Trainer(settings.load(sets=[*DEPENDENT, *sets]), load("digits"), CPU)
    hooks = Silent()
    Pruning(trainer)
    trainer.play(hooks)
    return trainer, hooks.frames


@pytest.mark.slow
def test_what_would_undo_a_host_is_not_executed() -> None:
    forbidden, frames = play()
    allowed, frames_allowed = play("governor.veto=false")
    decisions = [frame for frame in frames if "governor.veto" in frame]
    decision = decisions[PRUNED_AT]
    is_vetoed = decision["governor.veto"][:, Op.PRUNE, 0] == VetoReason.FORGETS
    assert is_vetoed[0]
    assert decision["executed"].tolist() == (~is_vetoed).tolist()
    assert forbidden.rollout.legal[PRUNED_AT, :, Op.PRUNE, 0].tolist() == (~is_vetoed).tolist()
    assert allowed.rollout.legal[PRUNED_AT, :, Op.PRUNE, 0].all()
    ill, ill_allowed = (
        np.stack([f["governor.ill"] for f in some if "governor.ill" in f])[PRUNED_AT:, 0].tolist()
        for some in (frames, frames_allowed)
    )
    assert ill == [0, 0]
    assert ill_allowed[0] == RollbackReason.COLLAPSE
    told = [
        list(veto_events(b, a, ("r0c0", "r0c1"))) for a, b in zip([{}, *decisions], decisions, strict=False)
    ]
    first = [veto for new in told for env, veto in new if (env, veto.slot) == (0, "r0c0")]
    assert {(veto.reason, *veto.ops) for veto in first} == {("forgets", "PRUNE")}
    vetoed = np.stack([frame["governor.veto"][0, Op.PRUNE, 0] for frame in decisions]).astype(bool)
    begins = np.diff(vetoed, prepend=False) & vetoed
    assert len(first) == begins.sum(), "told once each time it begins"


def governor(**changes: object) -> Governor:
    made = Governor(Population(CONFIG, load("digits"), CPU), 10, 0.1, GovernorConfig(**changes))  # type: ignore[arg-type]
    made.begin_episode()
    return made


def move(one: Governor, before: float, after: float) -> Tensor:
    """Env 0 fails as the alpha of its slot 1 has moved; what is forbidden there by op after it."""
    table = one._population.table
    table.stage[:, 1], table.alpha[:, 1] = Stage.BLENDING, before
    one.roll_back_failed(measurements(one._population, [0.5] * 4), 1)
    table.alpha[:, 1] = after
    failing = measurements(one._population, [math.nan, 0.5, 0.5, 0.5])
    one.roll_back_failed(failing, 2)
    vetoes = one.vetoes(failing)
    assert not vetoes[1:].any()
    assert not vetoes[:, :, 0].any()
    return vetoes[0, :, 1]


@pytest.mark.parametrize(
    ("before", "after", "ops"),
    [
        (0.25, 0.5, {Op.ADVANCE, Op.SET_ALPHA}),
        (1.0, 0.0, {Op.PRUNE, Op.SET_ALPHA}),
        (0.5, 0.5, set()),
    ],
)
def test_what_a_rollback_undid_is_forbidden_for_a_while(before: float, after: float, ops: set[Op]) -> None:
    one = governor()
    assert {op for op in Op if move(one, before, after)[op] == VetoReason.UNDONE} == ops
    seen = measurements(one._population, [0.5] * 4)
    forbidden = []
    for epoch in (3, 4, 5):
        forbidden.append(bool(one.vetoes(seen).any()))
        one.roll_back_failed(seen, epoch)
    assert forbidden == [bool(ops), bool(ops), False]


@pytest.mark.parametrize("epochs", [1, 3])
def test_veto_epochs_say_for_how_long(epochs: int) -> None:
    one = governor(veto_epochs=epochs)
    move(one, 0.25, 0.5)
    seen = measurements(one._population, [0.5] * 4)
    forbidden = 0
    for epoch in range(3, 9):
        forbidden += bool(one.vetoes(seen).any())
        one.roll_back_failed(seen, epoch)
    assert forbidden == epochs


@pytest.mark.parametrize("changes", [{"veto": False}, {"veto_epochs": 0}])
def test_vetoes_can_be_switched_off(changes: dict[str, object]) -> None:
    assert not move(governor(**changes), 0.25, 0.5).any()


@pytest.mark.parametrize(
    ("accuracy", "contribution", "age", "loss", "stage", "forbidden"),
    [
        (0.9, 0.8, 0, 0.5, Stage.HOLDING, True),
        (0.9, 0.77, 0, 0.5, Stage.BLENDING, True),
        (0.9, 0.75, 0, 0.5, Stage.HOLDING, False),
        (0.9, 0.8, 1, 0.5, Stage.HOLDING, False),
        (0.9, 0.8, 0, 2.0, Stage.HOLDING, False),
        (0.9, math.nan, 0, 0.5, Stage.HOLDING, False),
        (math.nan, 0.8, 0, 0.5, Stage.HOLDING, False),
        (0.09, 0.0, 0, 0.5, Stage.HOLDING, False),
        (0.9, 0.8, 0, 0.5, Stage.FOSSILIZED, False),
    ],
)
def test_pruning_is_forbidden_where_the_host_would_forget(
    accuracy: float, contribution: float, age: int, loss: float, stage: Stage, forbidden: bool
) -> None:
    one = governor()
    table = one._population.table
    table.stage[2, 0], table.contribution[2, 0], table.contribution_age[2, 0] = int(stage), contribution, age
    seen = measurements(one._population, [0.5, 0.5, loss, 0.5])
    seen.val_accuracy = torch.full((4,), accuracy)
    one.roll_back_failed(seen, 1)
    vetoes = one.vetoes(seen)
    assert bool(vetoes[2, Op.PRUNE, 0] == VetoReason.FORGETS) == forbidden
    assert int(vetoes.count_nonzero()) == forbidden


def test_vetoes_survive_a_checkpoint() -> None:
    one, other = governor(), governor()
    move(one, 0.25, 0.5)
    other.load_state_dict(one.state_dict())
    seen = measurements(one._population, [0.5] * 4)
    other._population.load_state_dict(one._population.state_dict())
    assert torch.equal(other.vetoes(seen), one.vetoes(seen))
    assert one.vetoes(seen).any()
