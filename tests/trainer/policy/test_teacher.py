"""The teacher: it finds each task's best schedule, and what it shows is what the policy comes to do."""

from __future__ import annotations

import copy
import logging
import re

import pytest
import torch
from torch import Tensor

from protocol.messages.vocabulary import Op, Stage
from trainer.config import load as settings
from trainer.config.load import ConfigError
from trainer.config.schema import Config
from trainer.measurements import Measurements
from trainer.policy.agent import Agent
from trainer.policy.imitation import imitate
from trainer.policy.rollout import Rollout
from trainer.policy.teacher import Teacher
from trainer.seeds.lifecycle import Lifecycle
from trainer.seeds.table import SlotTable

torch.set_num_threads(1)
SLOTS, ENVS, EPOCHS = 2, 8, 12
BEST = {0: "depthwise in slot 1", 1: "norm in slot 0, depthwise in slot 1", 2: "no seed"}
"""By task."""


def config(*sets: str) -> Config:
    fixed = (
        *("task.mixture=digits,texture,histogram", "seeds.blueprints=norm,depthwise"),
        *(f"envs.count={ENVS}", f"episode_epochs={EPOCHS}", "teacher.search_rounds=12"),
        *("ppo.minibatches=2", "policy.hidden=32"),
    )
    return settings.load(sets=[*fixed, *sets])


def worth(teacher: Teacher, task_N: Tensor) -> Tensor:
    """[N], what the schedules of this round earn: the more, the more slots are as in `BEST`."""
    wanted = torch.tensor([[-1, 1], [0, 1], [-1, -1]])[task_N]
    planted = teacher._schedules[teacher._chosen_N]
    return (wanted == planted).double().mean(1)


def search(teacher: Teacher, rounds: range, noise: float = 0.05) -> None:
    for round_ in rounds:
        generator = torch.Generator().manual_seed(round_)
        task_N = torch.randint(0, 3, (ENVS,), generator=generator)
        teacher.assign(round_, task_N)
        teacher.judge(worth(teacher, task_N) + noise * torch.randn(ENVS, generator=generator))


def test_search_finds_the_best_schedule_of_each_task(caplog: pytest.LogCaptureFixture) -> None:
    teacher = Teacher(config(), SLOTS)
    search(teacher, range(1, 13))
    with caplog.at_level(logging.INFO):
        teacher.log_findings()
    told = [re.split(": |; ", record.getMessage())[1:3] for record in caplog.records]
    assert told == [["digits", BEST[0]], ["texture", BEST[1]], ["histogram", BEST[2]]]


def test_every_schedule_is_tried_before_one_is_repeated() -> None:
    teacher = Teacher(config(), SLOTS)
    task_N = torch.zeros(ENVS, dtype=torch.int64)
    for round_ in range(1, 4):
        teacher.assign(round_, task_N)
        teacher.judge(torch.rand(ENVS))
        assert int(teacher._plays.sum()) == round_ * ENVS
        assert int((teacher._plays[0] > 0).sum()) == min(9, round_ * ENVS)
    assert teacher._plays[1:].sum() == 0


def test_search_goes_on_bit_for_bit_after_a_resume() -> None:
    whole, half = Teacher(config(), SLOTS), Teacher(config(), SLOTS)
    search(whole, range(1, 13))
    search(half, range(1, 7))
    resumed = Teacher(config(), SLOTS)
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    search(resumed, range(7, 13))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_too_many_schedules_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 blueprints in 8 slots make 6561 schedules, more than 4096"):
        Teacher(config(), 8)


def demonstrate(cfg: Config, agent: Agent, round_: int, rule: bool = True) -> Rollout:
    """An episode of hosts that show their task, 0 or 1, by their loss from the second epoch on."""
    teacher = Teacher(cfg, SLOTS)
    teacher._plays[:] = 1
    teacher._paid[0, teacher._schedules.tolist().index([-1, 1])] = 1
    teacher._paid[1, teacher._schedules.tolist().index([0, -1])] = 1
    task_N = torch.arange(ENVS) % 2
    agent.begin_episode(round_)
    teacher.assign(teacher.rounds, task_N)
    agent.rule = teacher.rule(range(ENVS), torch.device("cpu")) if rule else None
    lifecycle, table = Lifecycle(cfg), SlotTable.empty(ENVS, SLOTS)
    measured = Measurements.unmeasured(ENVS, SLOTS)
    rollout = Rollout.zeros(EPOCHS, ENVS, SLOTS)
    for epoch in range(EPOCHS):
        lifecycle.advance(table, measured)
        legal = lifecycle.legal(table, measured)
        decision = agent.act(table, measured, legal, epoch)
        lifecycle.apply(table, decision.actions, legal, measured)
        agent.record_action(decision)
        rollout.store(epoch, decision, task_N / EPOCHS)
        measured.val_loss = measured.train_loss = 2.0 + task_N + 0.1 * torch.rand(ENVS)
        measured.seed_grad_norm = torch.where(table.stage == Stage.TRAINING, 0.3, torch.nan)
        measured.seed_health = torch.where(table.stage == Stage.TRAINING, 1.0, torch.nan)
    return rollout


def planted(rollout: Rollout) -> list[list[tuple[int, int, int]]]:
    """By env (epoch, slot, blueprint) of all that was planted."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(ENVS)]
    for epoch, env in (rollout.actions[..., 0] == Op.GERMINATE).nonzero().tolist():
        slot, blueprint = rollout.actions[epoch, env, 1:3].tolist()
        found[env].append((epoch, slot, blueprint))
    return found


@pytest.mark.parametrize("epoch", [0, 3])
def test_teacher_plants_its_schedule_from_its_epoch_on(epoch: int) -> None:
    cfg = config(f"teacher.plant_epoch={epoch}")
    agent = Agent(cfg, slots=SLOTS, host_parameters=100)
    shown = planted(demonstrate(cfg, agent, 1))
    assert shown == [[(epoch, 1, 1)], [(epoch, 0, 0)]] * (ENVS // 2)


def test_policy_comes_to_do_what_it_was_shown() -> None:
    cfg = config("teacher.plant_epoch=2")
    agent = Agent(cfg, slots=SLOTS, host_parameters=100)
    assert agent.ppo is not None
    missed = []
    for round_ in range(1, 13):
        missed.append(
            imitate(agent.ppo, demonstrate(cfg, agent, round_), round_, passes=8, learning_rate=0.003)
        )
    assert missed[-1] < 0.2 * missed[0]
    agent.greedy = True
    assert planted(demonstrate(cfg, agent, 13, rule=False)) == [[(2, 1, 1)], [(2, 0, 0)]] * (ENVS // 2)


def test_imitation_keeps_weights_where_a_gradient_is_not_finite() -> None:
    cfg = config()
    agent = Agent(cfg, slots=SLOTS, host_parameters=100)
    assert agent.ppo is not None
    rollout = demonstrate(cfg, agent, 1)
    before = copy.deepcopy(agent.ppo.network.state_dict())
    rollout.observation.blueprint[:] = 0
    rollout.observation.base[..., -1] = torch.inf
    imitate(agent.ppo, rollout, 1, passes=1, learning_rate=0.1)
    for name, parameter in agent.ppo.network.named_parameters():
        if not name.startswith("critic"):  # rescaled by what the returns are, not by a step
            assert torch.equal(parameter, before[name]), name
