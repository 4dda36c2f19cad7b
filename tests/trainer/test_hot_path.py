"""What an epoch does not do: wait for the device, grow with the envs, look at the test images."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.data.dataset import Dataset
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts import host_group as group
from esper_overwatch.trainer.hosts import population
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.loop import TOPOLOGY, Trainer
from esper_overwatch.trainer.policy.actions import ActionSpace

from .compute.test_process_group import Recording

torch.set_num_threads(1)
CPU = torch.device("cpu")
SETS = (
    "envs.threads=1",
    "task.batches_per_epoch=2",
    "task.batch_size=16",
    "episode_epochs=6",
    "policy.hidden=16",
    "ppo.minibatches=1",
)


class Counting(TorchDispatchMode):
    """How many operations are issued, views apart, and how many of them wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.issued = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.waits += name in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")
        if not func.is_view:
            self.issued += 1
        return func(*args, **(kwargs or {}))


def grown(n: int, *sets: str) -> Population:
    """A population in which every host holds a seed of every kind that there are slots for."""
    config = settings.load(
        sets=[*SETS, f"envs.count={n}", f"envs.group_size={n}", "ppo.minibatches=1", *sets]
    )
    hosts = Population(config, load("digits"), CPU)
    hosts.begin_episode(1)
    table = hosts.table
    table.blueprint[:] = torch.arange(table.shape[1])
    for stage in (Stage.GERMINATED, Stage.HOLDING):
        table.stage[:] = int(stage)
        table.alpha[:] = float(stage == Stage.HOLDING)
        hosts.set_topology(*(getattr(table, name).numpy() for name in TOPOLOGY))
        hosts.run_epoch(1, int(stage == Stage.HOLDING))
    return hosts


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_step_issues_same_operations_for_any_host_count(plan: str) -> None:
    issued = []
    for n in (4, 16):
        hosts = grown(n, f"envs.plan={plan}").groups[0]
        with Counting() as counted:
            hosts.train(1, 2)
        issued.append(counted.issued)
    copies = 2  # one a step, of gradients that leave a register unfilled: those of 16 hosts fill theirs
    assert issued[1] == issued[0] - copies


def test_training_validating_and_deciding_read_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (population, group):  # as on a GPU: on a CPU a look costs nothing
        monkeypatch.setattr(module, "is_known_empty", lambda _: False)
    config = settings.load(sets=[*SETS, "envs.count=4", "envs.group_size=4"])
    trainer = Trainer(config, load("digits"), CPU)
    monkeypatch.setattr(
        trainer.population._executor, "_workers", None
    )  # what other threads do is not counted
    seen = Recording()
    with Counting() as counted:
        trainer.play(seen)
    assert counted.waits == 0
    trainer.end_round(seen)
    assert trainer.to_host.count == config.episode_epochs + 1, "one an epoch, and one for the first decision"


def test_autocast_does_not_reach_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    group = grown(4, "amp.dtype=bf16").groups[0]
    gradient, entered = torch.autograd.grad, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        entered.append(torch.is_autocast_enabled("cpu"))
        return gradient(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    group.train(1, 2)
    assert entered == [False, False]


def test_neither_reward_nor_training_sees_the_test_images() -> None:
    config = settings.load(sets=[*SETS, "envs.count=4", "envs.group_size=4"])
    data = load("digits")
    assert isinstance(data, Dataset)
    noise = torch.Generator().manual_seed(1)
    labels = torch.randint(0, data.classes, data.test.labels.shape, generator=noise)
    other = dataclasses.replace(data, test=dataclasses.replace(data.test, labels=labels))
    frames = []
    for task in (data, other):
        seen = Recording()
        trainer = Trainer(config, task, CPU)
        trainer.play(seen)
        frames.append(seen.frames)
    for mine, theirs in zip(*frames, strict=True):
        for name, column in mine.items():
            np.testing.assert_array_equal(column, theirs[name], err_msg=name)


def test_a_sure_policy_does_what_it_is_sure_of() -> None:
    space = ActionSpace(slots=3, blueprints=4)
    n = 1000
    logits = tuple(
        torch.zeros(n, *shape)
        for shape in ((len(Op),), (len(Op), 3), *((3, size) for size in space.sizes[2:]))
    )
    logits[0][:, Op.GERMINATE] = 30.0
    legal = torch.ones(n, len(Op), 3, dtype=torch.bool)
    uniform = torch.rand(n, len(HEAD_NAMES), generator=torch.Generator().manual_seed(2))
    actions = space.sample(logits, legal, uniform)
    assert (actions[:, 0] == Op.GERMINATE).all()
