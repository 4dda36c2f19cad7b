"""An optimizer's rates and gradients are published by its hook, and disturb no step."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev

from .viewer import journal, needs

pytestmark = [*needs("torch", "pytorch"), pytest.mark.usefixtures("home")]


def train(run: Any, optimizer: Any, parameters: list[Any], steps: int) -> None:
    for step in range(steps):
        loss = sum((p * (i + 1)).sum() for i, p in enumerate(parameters))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step=step, loss=loss)


def test_rate_and_norm_of_each_tenth_step() -> None:
    import torch

    from esper_overwatch.protocol.integrations.pytorch import watch_optimizer

    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with publish("watched") as run:
        handle = watch_optimizer(run, optimizer)
        train(run, optimizer, [weight], 21)
        handle.remove()
        train(run, optimizer, [weight], 11)
    rows = [(e.step, e.values) for e in journal("watched", ev.Scalars) if "loss" not in e.values]
    values = {"optimizer/learning_rate": 0.5, "optimizer/grad_norm": 2.0}
    assert rows == [(0, values), (10, values), (20, values)]


def test_groups_have_rates_of_their_own() -> None:
    import torch

    from esper_overwatch.protocol.integrations.pytorch import watch_optimizer

    first, second = torch.nn.Parameter(torch.zeros(1)), torch.nn.Embedding(3, 2, sparse=True).weight
    groups = [{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    with publish("groups") as run:
        watch_optimizer(run, optimizer, every=1, name="actor")
        first.grad = torch.tensor([3.0])
        torch.nn.functional.embedding(torch.tensor([0, 0]), second, sparse=True).sum().backward()
        optimizer.step()
    (row,) = [e.values for e in journal("groups", ev.Scalars)]
    norm = row.pop("actor/grad_norm")
    assert row == {"actor/0/learning_rate": 0.1, "actor/1/learning_rate": 0.2}
    assert norm == pytest.approx((3.0**2 + 2 * 2.0**2) ** 0.5)


def test_what_cannot_be_read_ends_watching_not_training(caplog: pytest.LogCaptureFixture) -> None:
    import torch

    from esper_overwatch.protocol.integrations.pytorch import watch_optimizer

    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with publish("odd") as run:
        with pytest.raises(ValueError, match="every = 0"):
            watch_optimizer(run, optimizer, every=0)
        watch_optimizer(run, optimizer, every=1)
        weight.grad = torch.ones(4)
        optimizer.param_groups[0]["params"].append(None)
        with caplog.at_level(logging.WARNING), pytest.raises(AttributeError):
            optimizer.step()  # torch itself has no use for it
        optimizer.param_groups[0]["params"].pop()
        train(run, optimizer, [weight], 3)
    assert caplog.text.count("is not watched any more") == 1
    assert weight.tolist() == [-1.5] * 4
