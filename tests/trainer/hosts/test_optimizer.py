"""Stacked SGD: the formula of torch's own, and for a row the same bits wherever it lies."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.hosts.optimizer import ParameterGroup, StackedSGD, padded_zeros


def stepped(weights: torch.Tensor, gradients: list[torch.Tensor], decay: float = 0.0) -> torch.Tensor:
    weights = padded_zeros(weights.shape, weights.dtype).copy_(weights)
    group = ParameterGroup(["w"], 0.05, decay={"w": decay} if decay else {})
    optimizer = StackedSGD({"w": weights}, [group], 0.9)
    for gradient in gradients:
        optimizer.step({"w": gradient})
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("numbers", [1, 7, 10, 17, 64, 72])
def test_a_row_is_updated_alike_wherever_it_lies(numbers: int, decay: float) -> None:
    g = torch.Generator().manual_seed(numbers)
    weights, *gradients = (torch.randn(5, numbers, generator=g) for _ in range(4))
    whole = stepped(weights, gradients, decay)
    for rows in (slice(0, 2), slice(2, 5), slice(4, 5)):
        assert torch.equal(stepped(weights[rows], [g[rows] for g in gradients], decay), whole[rows])


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("numbers", [10, 64])
def test_it_is_torch_sgd(numbers: int, decay: float) -> None:
    weights, *gradients = (torch.randn(3, numbers, dtype=torch.float64) for _ in range(4))
    known = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.SGD([known], lr=0.05, momentum=0.9, weight_decay=decay)
    for gradient in gradients:
        known.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(stepped(weights, gradients, decay), known.detach(), rtol=1e-12, atol=1e-14)
