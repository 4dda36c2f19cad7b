"""Single components over a course of epochs: escrow, loss and hindsight."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.config.policy_options import RewardConfig
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.reward.compute import Reward
from esper_overwatch.trainer.seeds.table import SlotTable

from .test_compute import CALM, GUESS, HOST, S, T, terms


def paid(mode: str, course: list[float], field: str = "val_accuracy", **cfg: Any) -> list[float]:
    """Component `gain` of an episode with this course of accuracy or loss, undiscounted."""
    reward = Reward(dataclasses.replace(terms(1.0, mode=mode, **cfg), epochs=len(course)), 1, S)
    gains = []
    for epoch, value in enumerate(course):
        measurements = Measurements.unmeasured(1, S)
        getattr(measurements, field).fill_(value)
        gains.append(float(reward(SlotTable.empty(1, S), measurements, epoch, CALM)["gain"]))
    return gains


def test_escrow_pays_what_lasts_and_takes_back_the_rest() -> None:
    course = [0.2, 0.3, 0.4, 0.9, 0.9, 0.9, 0.9, 0.5, 0.3, 0.6]
    expected = [0.0, 0.0, 0.1, 0.1, 0.1, 0.2, 0.2, -0.2, -0.2, -0.1]
    assert paid("escrow", course) == pytest.approx(expected, abs=1e-6)
    assert sum(paid("escrow", course)) == pytest.approx(min(course[-3:]) - 0.1, abs=1e-6)


def test_loss_going_to_and_fro_pays_nothing() -> None:
    fall, back = 2.0, 2.2
    course = [fall, back] * 6 + [fall]
    gains = paid("loss", course, "val_loss")
    unit = 5 * len(course) / GUESS
    assert gains[0] == pytest.approx(unit * (GUESS - fall), abs=1e-4)
    assert gains[1] == pytest.approx(-unit * (back - fall) / 2, abs=1e-4), "a regression costs half"
    assert sum(gains[1:]) == pytest.approx(0.0, abs=1e-4)


def test_one_epoch_of_a_diverged_loss_costs_a_bounded_sum() -> None:
    calm, struck = [2.0] * 12, [2.0] * 5 + [1e6] + [2.0] * 6
    difference = sum(paid("loss", struck, "val_loss")) - sum(paid("loss", calm, "val_loss"))
    assert difference == pytest.approx(0.0, abs=1e-3), "what it cost is regained"
    assert min(paid("loss", struck, "val_loss")) == pytest.approx(-25.0)


def test_old_seeds_cost_by_loss_and_young_ones_do_not() -> None:
    reward = Reward(terms(mode="loss", rent=0.01), 1, S)
    table, measurements = SlotTable.empty(1, S), Measurements.unmeasured(1, S)
    measurements.seed_parameters = torch.tensor([[HOST, 3 * HOST, 0]])
    table.age = torch.tensor([[3, 2, 9]])
    rent = reward(table, measurements, 4, CALM)["rent"]
    assert float(rent) == pytest.approx(-0.05 * math.log(2))


@pytest.mark.parametrize("only_fossilized", [False, True])
def test_seeds_left_out_at_the_end_cost_no_loss(only_fossilized: bool) -> None:
    """As they cost nothing in the other modes; in the last two epochs here."""
    cfg = RewardConfig(mode="loss", rent=0.01, only_fossilized=only_fossilized, final_epochs=2)
    reward = Reward(dataclasses.replace(terms(), cfg=cfg), 1, S)
    table, measurements = SlotTable.empty(1, S), Measurements.unmeasured(1, S)
    measurements.seed_parameters = torch.tensor([[HOST, 2 * HOST, 0]])
    table.age = torch.tensor([[9, 9, 9]])
    table.stage = torch.tensor([[Stage.FOSSILIZED, Stage.HOLDING, Stage.DORMANT]])
    rents = [float(reward(table, measurements, epoch, CALM)["rent"]) for epoch in (T - 3, T - 2, T - 1)]
    every, fossil = -0.05 * math.log(4), -0.05 * math.log(2)
    assert rents == pytest.approx([every, *([fossil] * 2 if only_fossilized else [every] * 2)])


@pytest.mark.parametrize("final_epochs", [1, 3, 5])
def test_escrow_ends_with_least_of_three_whatever_counts(final_epochs: int) -> None:
    course = [0.2, 0.3, 0.4, 0.5, 0.1, 0.6, 0.5, 0.9]
    gains = paid("escrow", course, final_epochs=final_epochs)
    assert sum(gains) == pytest.approx(0.5 - 0.1, abs=1e-6)


class Scaffolding:
    """One env whose seed in slot 0 gives 0.1 of accuracy to that in slot 1."""

    def __init__(self, **cfg: Any) -> None:
        self.reward = Reward(terms(mode="sparse", **cfg), 1, S)
        self.reward.begin_episode()
        self.table, self.epoch = SlotTable.empty(1, S), 0
        self.table.stage[0, :2] = Stage.HOLDING
        self.pair(0.1)

    def pair(self, value: float) -> None:
        self.table.interaction[0, 0, 1] = self.table.interaction[0, 1, 0] = value

    def becomes(self, slot: int, stage: Stage, rolled_back: bool = False) -> float:
        self.table.stage[0, slot] = stage
        self.epoch += 1
        measured = Measurements.unmeasured(1, S)
        components = self.reward(self.table, measured, self.epoch, torch.tensor([rolled_back]))
        return float(components["hindsight"])


@pytest.mark.parametrize("first", ["scaffold", "other"])
def test_a_scaffold_is_paid_once_and_when_both_are_done(first: str) -> None:
    story = Scaffolding(hindsight=0.5)
    steps = [(0, Stage.PRUNED), (1, Stage.FOSSILIZED)]
    for step, due in zip(steps if first == "scaffold" else steps[::-1], (0.0, 0.05), strict=True):
        assert story.becomes(*step) == pytest.approx(due)
    assert story.becomes(2, Stage.GERMINATED) == 0.0
    assert story.becomes(0, Stage.EMBARGOED) == 0.0


def test_hindsight_lapses_for_harm_removal_and_rollback() -> None:
    harmful = Scaffolding(hindsight=1.0)
    harmful.pair(-0.3)
    assert harmful.becomes(0, Stage.PRUNED) == harmful.becomes(1, Stage.FOSSILIZED) == 0.0
    lapsed = Scaffolding(hindsight=1.0)
    lapsed.becomes(0, Stage.PRUNED)
    lapsed.becomes(1, Stage.PRUNED)
    lapsed.becomes(1, Stage.HOLDING)
    assert lapsed.becomes(1, Stage.FOSSILIZED) == 0.0
    undone = Scaffolding(hindsight=1.0)
    undone.becomes(0, Stage.PRUNED)
    undone.becomes(0, Stage.HOLDING, rolled_back=True)
    assert undone.becomes(1, Stage.FOSSILIZED) == 0.0
    assert undone.becomes(0, Stage.PRUNED) == pytest.approx(0.1), "owed anew"


def test_hindsight_of_an_episode_is_capped() -> None:
    story = Scaffolding(hindsight=1.0)
    story.becomes(1, Stage.FOSSILIZED)
    payments = []
    for _ in range(4):
        payments.append(story.becomes(0, Stage.PRUNED))
        story.becomes(0, Stage.HOLDING)
    assert payments == pytest.approx([0.1, 0.1, 0.0, 0.0], abs=1e-6)
    story.reward.begin_episode()
    assert story.becomes(0, Stage.PRUNED) == pytest.approx(0.1)
