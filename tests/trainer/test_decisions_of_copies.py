"""Copies of hosts, and decisions at few epochs, in the trainer: pairing, what is told, resume."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.hooks import StopRun
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.gae import advantages
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.telemetry.transfer import HostFrame
from tests.trainer.ranks.test_rank_states import StopHooks, assert_equal

COPIES, EPOCHS = 2, (1, 4)
CONFIG = load(
    sets=[
        "device=cpu",
        "task.mixture=texture,histogram",
        "envs.count=6",
        f"envs.copies={COPIES}",
        "envs.threads=1",
        "episode_epochs=9",
        "task.batches_per_epoch=2",
        "task.batch_size=16",
        "host.channels=4,4",
        "policy.hidden=16",
        "policy.decision_epochs=1,4",
        "ppo.epochs=2",
        "seeds.blueprints=norm,depthwise",
    ]
)


class Watch(StopHooks):
    """Keeps the frames and updates of two rounds."""

    def __init__(self, stop: tuple[int, int] | None = None) -> None:
        super().__init__(stop)
        self.updates: list[UpdateStatistics | None] = []

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None:
        self.updates.append(update)
        self.frames.append(frame)


def build(cfg: Config = CONFIG) -> Trainer:
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    return Trainer(cfg, load_task(cfg.task, cpu), cpu)


@pytest.fixture(scope="module")
def whole() -> tuple[Trainer, Watch]:
    trainer, hooks = build(), Watch()
    trainer.run(hooks)
    return trainer, hooks


def columns(hooks: StopHooks, name: str) -> list[Any]:
    return [frame[name] for frame in hooks.frames if name in frame]


def test_copies_of_a_host_differ_by_what_is_decided_alone() -> None:
    trainer, hooks = build(replace(CONFIG, policy=replace(CONFIG.policy, kind="no_growth"))), Watch()
    trainer.run(hooks)
    for losses in columns(hooks, "val_loss"):
        by_host = losses.reshape(-1, COPIES)
        assert (by_host == by_host[:, :1]).all()
        assert len(np.unique(by_host)) == len(by_host)


def test_copies_draw_actions_of_their_own(whole: tuple[Trainer, Watch]) -> None:
    planted = whole[0].rollout.plan
    assert any(bool((planted[:, i] != planted[:, i + 1]).any()) for i in range(0, 6, COPIES))


def test_probabilities_are_told_where_something_was_decided(whole: tuple[Trainer, Watch]) -> None:
    told = [~np.isnan(likelihood).any() for likelihood in columns(whole[1], "policy.likelihood")]
    assert told == [epoch in EPOCHS for epoch in range(9)] * 2


def test_update_is_about_the_decisions(whole: tuple[Trainer, Watch]) -> None:
    trainer, hooks = whole
    update = hooks.updates[-1]
    assert isinstance(update, UpdateStatistics)
    assert math.isfinite(update.approx_kl)
    assert update.op_fraction[Op.PRUNE] == update.op_fraction[Op.SET_ALPHA] == 0.0
    rollout, ppo = trainer.rollout, CONFIG.ppo
    _, returns = advantages(rollout.reward, rollout.value, ppo.gamma, ppo.gae_lambda, EPOCHS, COPIES)
    assert returns.shape == (len(EPOCHS), 6)
    assert update.return_std == pytest.approx(float(returns.std()), rel=1e-5)


@pytest.mark.parametrize("stop", [(1, 1), (2, 3), (2, 4), (2, 8)])
def test_resumed_run_decides_as_if_it_had_not_stopped(
    whole: tuple[Trainer, Watch], stop: tuple[int, int]
) -> None:
    first = build()
    with pytest.raises(StopRun):
        first.run(Watch(stop))
    state = first.state_dict()
    resumed = build()
    resumed.load_state_dict(state)
    resumed.run(Watch())
    assert_equal(resumed.state_dict(), whole[0].state_dict())
