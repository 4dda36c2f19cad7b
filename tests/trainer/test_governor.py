"""A sick host is put back alone: bit for bit, momentum cleared, penalised; the others never know."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer import settings
from trainer.data.registry import load
from trainer.governor import Governor, Ill
from trainer.hosts.population import Population
from trainer.loop import Trainer
from trainer.seeds.stages import Stage
from trainer.signals import Signals
from trainer.telemetry.transfer import Frame, Transfer

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


class Silent:
    """An observer that only transfers, keeps the frames and lets a test meddle before an epoch."""

    def __init__(self, meddle: Any = None) -> None:
        self.frames: list[Frame] = []
        self.layer_envs = None
        self._transfer = Transfer()
        self._meddle = meddle
        self.trainer: Trainer | None = None

    def phase(self, _name: str) -> Any:
        return contextlib.nullcontext()

    def epoch_begins(self, epoch: int, _epochs: int) -> None:
        if self._meddle is not None:
            self._meddle(self.trainer, epoch)

    def see(self, columns: dict[str, Tensor], _layers: Any = ()) -> Frame:
        frame = self._transfer(columns)
        self.frames.append(frame)
        return frame

    def round_begins(self, _round: int) -> None: ...

    def was_validation(self, _seconds: float) -> None: ...

    def epoch_finished(self, _trainer: Trainer) -> None: ...


def play(meddle: Any = None) -> tuple[Trainer, list[Frame]]:
    """One episode."""
    trainer = Trainer(CONFIG, load("digits"), CPU)
    observer = Silent(meddle)
    observer.trainer = trainer
    trainer.play(observer)  # type: ignore[arg-type]
    return trainer, observer.frames


def poison(trainer: Trainer, epoch: int) -> None:
    """A NaN into env 1's weights before its fourth epoch."""
    if epoch == 3:
        weight = next(iter(trainer.population.groups[0].weights.values()))
        weight.data[1].view(-1)[0] = math.nan


def test_a_nan_in_one_env_rolls_back_that_env_alone() -> None:
    well, frames_well = play()
    sick, frames_sick = play(poison)
    assert [f["governor.ill"].tolist() for f in frames_well if "governor.ill" in f] == [[0, 0, 0, 0]] * 8
    ill = [f["governor.ill"].tolist() for f in frames_sick if "governor.ill" in f]
    assert ill == [[0, 0, 0, 0]] * 3 + [[0, Ill.NAN, 0, 0]] + [[0, 0, 0, 0]] * 4
    others = [0, 2, 3]
    for a, b in zip(frames_well, frames_sick, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name][others], b[name][others], err_msg=name)
    for mine, theirs in zip(well.population.groups, sick.population.groups, strict=True):
        for name in mine.weights:
            keep = [0] if mine is well.population.groups[0] else [0, 1]
            assert torch.equal(mine.weights[name][keep], theirs.weights[name][keep])
    assert all(torch.isfinite(w).all() for g in sick.population.groups for w in g.weights.values())
    penalty = CONFIG.reward.rollback_penalty
    assert penalty > 0
    assert sick.rollout.reward[3, 1] <= well.rollout.reward[3, 1] - 0.9 * penalty
    assert sick.rollout.reset[4].tolist() == [False, True, False, False]


def test_what_is_restored_is_the_last_good_epoch_bit_for_bit() -> None:
    kept: dict[str, Tensor] = {}

    def watch(trainer: Trainer, epoch: int) -> None:
        group = trainer.population.groups[0]
        if epoch == 3:
            kept.update({name: w.detach()[1].clone() for name, w in group.weights.items()})
            kept["stages"] = trainer.table.stage[1].clone()
            poison(trainer, epoch)

    trainer = Trainer(CONFIG, load("digits"), CPU)
    observer = Silent(watch)
    observer.trainer = trainer
    state: dict[str, Tensor] = {}
    original = trainer.governor.judge

    def judge(signals: Signals, epoch: int) -> dict[str, Tensor]:
        verdict = original(signals, epoch)
        if epoch == 4:
            group = trainer.population.groups[0]
            state.update({name: w.detach()[1].clone() for name, w in group.weights.items()})
            assert all(not m[1].any() for m in group.optimizer.momentum.values())
            assert verdict["governor.restored"].tolist()[1] == 3
        return verdict

    trainer.governor.judge = judge  # type: ignore[method-assign]
    trainer.play(observer)  # type: ignore[arg-type]
    host = [name for name in state if not name.startswith("r0")]
    assert host
    for name in host:
        assert torch.equal(state[name], kept[name]), name


def signals(population: Population, loss: list[float]) -> Signals:
    made = Signals.unmeasured(*population.table.shape)
    made.train_loss = torch.tensor(loss)
    made.val_loss = torch.tensor(loss)
    return made


@pytest.fixture
def governor() -> Governor:
    population = Population(CONFIG, load("digits"), CPU)
    made = Governor(population, 10)
    made.begin_episode()
    return made


def test_lobotomy_needs_something_to_forget(governor: Governor) -> None:
    population = governor._population
    losses = [[2.30, 2.30, 1.0, 0.5], [2.30, 1.0, 2.0, 2.25], [2.31, 2.29, 1.9, 0.5]]
    seen = [
        governor.judge(signals(population, loss), epoch)["governor.ill"].tolist()
        for epoch, loss in enumerate(losses, 1)
    ]
    assert seen == [[0, 0, 0, 0], [0, 0, 0, Ill.LOBOTOMY], [0, Ill.LOBOTOMY, 0, 0]]


def test_divergence_takes_three_in_a_row(governor: Governor) -> None:
    population = governor._population
    quiet = [[0.10, 0.10, 0.10, 0.1]] * 4
    wild = [[1.0, 1.0, 0.1, 0.1], [1.0, 0.1, 1.0, 0.1], [1.0, 1.0, 1.0, 0.1], [0.1, 1.0, 0.1, 0.1]]
    seen = [
        governor.judge(signals(population, loss), epoch)["governor.ill"].tolist()
        for epoch, loss in enumerate(quiet + wild, 1)
    ]
    assert seen[:6] == [[0] * 4] * 6
    assert seen[6] == [Ill.DIVERGENCE, 0, 0, 0]
    assert seen[7] == [0] * 4


def test_slots_go_back_too_and_the_state_survives_a_checkpoint(governor: Governor) -> None:
    population = governor._population
    population.table.stage[0, 0] = Stage.TRAINING
    governor.judge(signals(population, [0.5] * 4), 1)
    population.table.stage[0, 0] = Stage.BLENDING
    saved, world = governor.state_dict(), population.state_dict()
    first = governor.judge(signals(population, [math.nan, 0.5, 0.5, 0.5]), 2)
    assert population.table.stage[0, 0] == Stage.TRAINING
    governor.load_state_dict(saved)
    population.load_state_dict(world)
    assert population.table.stage[0, 0] == Stage.BLENDING
    again = governor.judge(signals(population, [math.nan, 0.5, 0.5, 0.5]), 2)
    assert {k: v.tolist() for k, v in first.items()} == {k: v.tolist() for k, v in again.items()}
    assert population.table.stage[0, 0] == Stage.TRAINING
