"""A sick host is put back alone: bit for bit, momentum cleared, penalised; the others never know."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.seed_options import GovernorConfig
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.governor import Governor, RollbackReason
from esper_overwatch.trainer.hooks import Hooks
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds import alpha
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.telemetry.transfer import HostFrame
from tests.cases import nightly

torch.set_num_threads(1)
SETS = [
    "envs.count=4",
    "episode_epochs=8",
    "task.batches_per_epoch=2",
    "host.channels=4,8",
    "envs.group_size=2",
]
CONFIG = settings.load(sets=SETS)
CPU = torch.device("cpu")


class Silent(Hooks):
    """Keeps the frames and lets a test meddle before an epoch."""

    def __init__(self, meddle: Any = None) -> None:
        self.frames: list[HostFrame] = []
        self._meddle = meddle
        self.trainer: Trainer | None = None

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        if self._meddle is not None:
            self._meddle(self.trainer, epoch)

    def on_frame(self, frame: HostFrame, layers: Any = ()) -> None:
        self.frames.append(frame)


def play(meddle: Any = None, config: Config = CONFIG) -> tuple[Trainer, list[HostFrame]]:
    """One episode."""
    trainer = Trainer(config, load("digits"), CPU)
    hooks = Silent(meddle)
    hooks.trainer = trainer
    trainer.play(hooks)
    return trainer, hooks.frames


def poison(trainer: Trainer, epoch: int, at: int = 3) -> None:
    """A NaN into env 1's weights before epoch `at`."""
    if epoch == at:
        weight = next(iter(trainer.population.groups[0].weights.values()))
        weight.data[1].view(-1)[0] = math.nan


def test_a_nan_in_one_env_rolls_back_that_env_alone() -> None:
    well, frames_well = play()
    sick, frames_sick = play(poison)
    assert [f["governor.ill"].tolist() for f in frames_well if "governor.ill" in f] == [[0, 0, 0, 0]] * 8
    ill = [f["governor.ill"].tolist() for f in frames_sick if "governor.ill" in f]
    assert ill == [[0, 0, 0, 0]] * 3 + [[0, RollbackReason.NAN, 0, 0]] + [[0, 0, 0, 0]] * 4
    others = [0, 2, 3]
    for a, b in zip(frames_well, frames_sick, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name][others], b[name][others], err_msg=name)
    for mine, theirs in zip(well.population.groups, sick.population.groups, strict=True):
        for name in mine.weights:
            keep = [0] if mine is well.population.groups[0] else [0, 1]
            assert torch.equal(mine.weights[name][keep], theirs.weights[name][keep])
    assert all(torch.isfinite(w).all() for g in sick.population.groups for w in g.weights.values())
    assert sick.rollout.reset[4].tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    "at", [0, CONFIG.episode_epochs - 1, *(nightly(at) for at in range(1, CONFIG.episode_epochs - 1))]
)
def test_the_penalty_is_in_the_rollout_whichever_epoch_is_undone(at: int) -> None:
    sick, frames = play(partial(poison, at=at))
    penalty = CONFIG.reward.rollback_penalty
    paid = np.stack([f["reward.rollback"] for f in frames if "reward.rollback" in f])
    expected = np.zeros_like(paid)
    expected[at, 1] = -penalty
    np.testing.assert_allclose(paid, expected)
    assert penalty > 0
    components = [n for n in frames[-1] if n.startswith("reward.")]
    rest = sum(frames[-1][n] for n in components if n != "reward.rollback")
    last = rest - penalty * np.array([0, at == CONFIG.episode_epochs - 1, 0, 0])
    np.testing.assert_allclose(sick.rollout.reward[-1].numpy(), last, atol=1e-6)


DEPENDENT = settings.load(
    sets=["policy.kind=fixed", "envs.count=2", "envs.group_size=2", "host.channels=8,8", "seed=1"]
)
"""Pointwise hosts that cannot do without their seeds once they have them."""


@pytest.mark.slow
def test_rollback_calls_off_a_fade_out() -> None:
    """Before, the snapshot's fade-out went on in every epoch after the rollback, which undid each of them."""
    fading = DEPENDENT.episode_epochs - 8

    def prune(trainer: Trainer, epoch: int) -> None:
        if epoch == fading:
            table = trainer.table
            table.stage.fill_(Stage.BLENDING)
            table.pruning.fill_(True)
            alpha.start(table, table.pruning, torch.zeros(()), torch.tensor(3), torch.tensor(0))

    trainer, frames = play(prune, DEPENDENT)
    ill = np.stack([f["governor.ill"] for f in frames if "governor.ill" in f])
    struck = fading + 3
    assert (ill[struck] == RollbackReason.COLLAPSE).all()
    assert ill.astype(bool).sum(0).tolist() == [1, 1]
    table = trainer.table
    assert not table.pruning.any()
    torch.testing.assert_close(table.alpha, torch.full((2, 2), 1 / 3))
    accuracy = [f["val_accuracy"] for f in frames if "val_accuracy" in f]
    assert (accuracy[-1] > accuracy[struck] + 0.3).all()


def test_rollback_stops_a_ramp_that_may_start_again(governor: Governor) -> None:
    table = governor._population.table
    table.stage[:, 0] = Stage.BLENDING
    where = torch.tensor([[True, False]]).expand(4, 2)
    alpha.start(table, where, torch.ones(()), torch.tensor(4), torch.tensor(0))
    alpha.step(table)
    governor.roll_back_failed(measurements(governor._population, [0.5] * 4), 1)
    alpha.step(table)
    governor.roll_back_failed(measurements(governor._population, [math.nan, 0.5, 0.5, 0.5]), 2)
    assert table.alpha[:, 0].tolist() == [0.25, 0.5, 0.5, 0.5]
    assert alpha.moving(table)[:, 0].tolist() == [False, True, True, True]
    legal = Lifecycle(CONFIG).legal(table, Measurements.unmeasured(4, 2))
    assert legal[0, Op.SET_ALPHA, 0]
    assert not legal[1, Op.SET_ALPHA, 0]


def test_rollback_restores_last_good_epoch_bit_for_bit() -> None:
    kept: dict[str, Tensor] = {}

    def watch(trainer: Trainer, epoch: int) -> None:
        group = trainer.population.groups[0]
        if epoch == 3:
            kept.update({name: w.detach()[1].clone() for name, w in group.weights.items()})
            kept["stages"] = trainer.table.stage[1].clone()
            poison(trainer, epoch)

    trainer = Trainer(CONFIG, load("digits"), CPU)
    hooks = Silent(watch)
    hooks.trainer = trainer
    state: dict[str, Tensor] = {}
    original = trainer.governor.roll_back_failed

    def judge(measurements: Measurements, epoch: int) -> dict[str, Tensor]:
        verdict = original(measurements, epoch)
        if epoch == 4:
            group = trainer.population.groups[0]
            state.update({name: w.detach()[1].clone() for name, w in group.weights.items()})
            assert all(not m[1].any() for m in group.optimizer.momentum.values())
            assert verdict["governor.restored"].tolist()[1] == 3
        return verdict

    trainer.governor.roll_back_failed = judge  # type: ignore[method-assign]
    trainer.play(hooks)  # type: ignore[arg-type]
    host = [name for name in state if not name.startswith("r0")]
    assert host
    for name in host:
        assert torch.equal(state[name], kept[name]), name


def measurements(population: Population, loss: list[float]) -> Measurements:
    made = Measurements.unmeasured(*population.table.shape)
    made.train_loss = torch.tensor(loss)
    made.val_loss = torch.tensor(loss)
    return made


@pytest.fixture
def governor() -> Governor:
    population = Population(CONFIG, load("digits"), CPU)
    made = Governor(population, 10)
    made.begin_episode()
    return made


def test_collapse_needs_something_to_forget(governor: Governor) -> None:
    population = governor._population
    losses = [[2.30, 2.30, 1.0, 0.5], [2.30, 1.0, 2.0, 2.25], [2.31, 2.29, 1.9, 0.5]]
    seen = [
        governor.roll_back_failed(measurements(population, loss), epoch)["governor.ill"].tolist()
        for epoch, loss in enumerate(losses, 1)
    ]
    assert seen == [[0, 0, 0, 0], [0, 0, 0, RollbackReason.COLLAPSE], [0, RollbackReason.COLLAPSE, 0, 0]]


def test_divergence_takes_three_in_a_row(governor: Governor) -> None:
    population = governor._population
    quiet = [[0.10, 0.10, 0.10, 0.1]] * 4
    wild = [[1.0, 1.0, 0.1, 0.1], [1.0, 0.1, 1.0, 0.1], [1.0, 1.0, 1.0, 0.1], [0.1, 1.0, 0.1, 0.1]]
    seen = [
        governor.roll_back_failed(measurements(population, loss), epoch)["governor.ill"].tolist()
        for epoch, loss in enumerate(quiet + wild, 1)
    ]
    assert seen[:6] == [[0] * 4] * 6
    assert seen[6] == [RollbackReason.DIVERGENCE, 0, 0, 0]
    assert seen[7] == [0] * 4


LIMITS: list[tuple[dict[str, float], list[float], list[int]]] = [
    ({}, [1.0, 2.0, 2.25], [0, 0, 2]),
    ({"learnt_loss_ratio": 0.4}, [1.0, 2.0, 2.25], [0, 0, 0]),
    ({"forgotten_loss_ratio": 0.8}, [1.0, 2.0], [0, 2]),
    ({}, [0.1] * 4 + [1.0] * 3, [0] * 6 + [3]),
    ({"divergence_epochs": 1}, [0.1] * 4 + [1.0], [0] * 4 + [3]),
    ({"divergence_ratio": 11}, [0.1] * 4 + [1.0] * 3, [0] * 7),
    ({"divergence_sigmas": 0}, [0.1, 0.7, 0.1, 0.9, 0.95, 0.99], [0] * 6),
    ({"divergence_sigmas": 0, "divergence_ratio": 1.5}, [0.1, 0.7, 0.1, 0.9, 0.95, 0.99], [0] * 5 + [3]),
    ({"divergence_ratio": 1.5}, [0.1, 0.7, 0.1, 0.9, 0.95, 0.99], [0] * 6),
]
"""Options, the losses of one host by epoch, and the reasons for which it is rolled back."""


@pytest.mark.parametrize(("options", "losses", "reasons"), LIMITS)
def test_limits_of_the_governor_are_options(
    options: dict[str, float], losses: list[float], reasons: list[int]
) -> None:
    population = Population(CONFIG, load("digits"), CPU)
    made = Governor(population, 10, config=GovernorConfig(**options))  # type: ignore[arg-type]
    made.begin_episode()
    found = [
        int(made.roll_back_failed(measurements(population, [loss] * 4), epoch)["governor.ill"][0])
        for epoch, loss in enumerate(losses, 1)
    ]
    assert found == reasons


def test_slots_go_back_too_and_the_state_survives_a_checkpoint(governor: Governor) -> None:
    population = governor._population
    population.table.stage[0, 0] = Stage.TRAINING
    governor.roll_back_failed(measurements(population, [0.5] * 4), 1)
    population.table.stage[0, 0] = Stage.BLENDING
    saved, world = governor.state_dict(), population.state_dict()
    first = governor.roll_back_failed(measurements(population, [math.nan, 0.5, 0.5, 0.5]), 2)
    assert population.table.stage[0, 0] == Stage.TRAINING
    governor.load_state_dict(saved)
    population.load_state_dict(world)
    assert population.table.stage[0, 0] == Stage.BLENDING
    again = governor.roll_back_failed(measurements(population, [math.nan, 0.5, 0.5, 0.5]), 2)
    assert {k: v.tolist() for k, v in first.items()} == {k: v.tolist() for k, v in again.items()}
    assert population.table.stage[0, 0] == Stage.TRAINING
