"""Curves and ramps of alpha."""

from __future__ import annotations

import math

import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import Curve
from esper_overwatch.trainer.seeds import alpha
from esper_overwatch.trainer.seeds.table import SlotTable

torch.set_num_threads(1)


def reference(curve: Curve, t: float) -> float:
    if curve == Curve.LINEAR:
        return t
    if curve == Curve.COSINE:
        return (1 - math.cos(math.pi * t)) / 2
    k = {Curve.SIGMOID_GENTLE: 6, Curve.SIGMOID: 12, Curve.SIGMOID_SHARP: 24}[curve]

    def logistic(t: float) -> float:
        return 1 / (1 + math.exp(-k * (t - 0.5)))

    return (logistic(t) - logistic(0)) / (logistic(1) - logistic(0))


@pytest.mark.parametrize("curve", list(Curve))
def test_curves_are_their_formulas_and_rise_from_0_to_1(curve: Curve) -> None:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    values = alpha.shape(torch.full_like(t, int(curve), dtype=torch.int64), t)
    expected = torch.tensor([reference(curve, float(x)) for x in t], dtype=torch.float64)
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-12)
    assert values[0] == 0
    assert values[-1] == 1
    assert (values.diff() > 0).all()


@pytest.mark.parametrize("curve", list(Curve))
@pytest.mark.parametrize("epochs", [1, 3, 5, 8])
@pytest.mark.parametrize(("start", "target"), [(0.0, 1.0), (0.0, 0.7), (1.0, 0.5), (0.7, 0.0), (0.5, 0.7)])
def test_a_ramp_is_monotone_and_lands_exactly(curve: Curve, epochs: int, start: float, target: float) -> None:
    table = SlotTable.empty(1, 2)
    table.alpha[0, 0] = start
    where = torch.tensor([[True, False]])
    alpha.start(
        table, where, torch.tensor([[target]]), torch.tensor([[epochs]]), torch.tensor([[int(curve)]])
    )
    seen = [float(table.alpha[0, 0])]
    for _ in range(epochs):
        assert alpha.moving(table)[0, 0]
        alpha.step(table)
        seen.append(float(table.alpha[0, 0]))
    assert alpha.landed(table)[0, 0]
    assert table.alpha[0, 0] == torch.tensor(target)
    steps = torch.tensor(seen).diff() * (1 if target > start else -1)
    assert (steps >= 0).all()
    assert steps.sum() > 0
    alpha.step(table)
    assert table.alpha[0, 0] == torch.tensor(target), "a landed ramp moves no further"
    assert not alpha.moving(table)[0, 1]


def test_no_epochs_or_nothing_to_do_lands_at_once() -> None:
    table = SlotTable.empty(1, 2)
    table.alpha[0] = torch.tensor([0.0, 0.7])
    both, target, epochs = torch.tensor([[True, True]]), torch.tensor([[1.0, 0.7]]), torch.tensor([[0, 5]])
    alpha.start(table, both, target, epochs, torch.zeros_like(table.curve))
    assert torch.equal(table.alpha, torch.tensor([[1.0, 0.7]]))
    assert not alpha.moving(table).any()
