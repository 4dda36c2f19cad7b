"""The teacher finds the best schedule of each task; the policy comes to do what it shows."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.actions import ActionSpace
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.baselines import schedules
from esper_overwatch.trainer.policy.imitation import Lesson, imitate
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS
from esper_overwatch.trainer.policy.ppo import PPO
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.policy.teacher import Teacher, TeacherReport, log_findings
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.seeds.table import SlotTable

torch.set_num_threads(1)
SLOTS, ENVS, EPOCHS, SEARCH = 2, 24, 12, 12
ALL = range(ENVS)
CPU = torch.device("cpu")
WORTH = torch.tensor(
    [  # depthwise in slot 1; norm in slot 0 and depthwise in slot 1; no seed
        [[0.1, 0.2, 0.1], [0.0, 0.1, 0.9]],
        [[0.0, 0.9, 0.4], [0.0, 0.1, 0.9]],
        [[0.9, 0.2, 0.1], [0.9, 0.1, 0.0]],
    ]
)
"""By task and slot, what nothing, a norm and a depthwise seed there are worth."""
WORTH[0, 0, 0] = 0.9


def config(*sets: str) -> Config:
    fixed = (
        *("task.mixture=digits,texture,histogram", "seeds.blueprints=norm,depthwise"),
        *(f"envs.count={ENVS}", f"episode_epochs={EPOCHS}", f"teacher.search_rounds={SEARCH}"),
        *("ppo.minibatches=2", "policy.hidden=32", "teacher.plant_epoch=1"),
        "teacher.demonstration_rounds=2",
    )
    return settings.load(sets=[*fixed, *sets])


def new_teacher() -> Teacher:
    return Teacher(config(), ActionSpace(SLOTS, 2))


def shown_by(look_N: Tensor, generator: torch.Generator, noise: float = 0.1) -> Tensor:
    """[2, N, columns], what hosts show before they are planted in; hosts of one look show the same."""
    seen = torch.full((2, len(look_N), len(BASE_COLUMNS.names)), torch.nan)
    loss = look_N + noise * torch.randn(len(look_N), generator=generator)
    seen[1, :, BASE_COLUMNS.names.index("val_loss")] = loss
    return seen


def search(
    teacher: Teacher, rounds: range, looks: tuple[float, ...] = (0.0, 1.0, 2.0), noise: float = 0.1
) -> None:
    """Rounds with hosts of three tasks, by which they look as told."""
    for round_ in rounds:
        generator = torch.Generator().manual_seed(round_)
        task_N = torch.randint(0, 3, (ENVS,), generator=generator)
        rollout = Rollout.zeros(EPOCHS, ENVS, SLOTS)
        rollout.observation.base[:2] = shown_by(torch.tensor(looks)[task_N], generator, noise)
        rollout.legal[:, :, [Op.WAIT, Op.GERMINATE]] = True
        teacher.assign(round_, task_N, rollout.observation.base[:2])
        plants = teacher.plants(ALL, teacher.plant_epoch, CPU)
        paid = WORTH[task_N.unsqueeze(1), torch.arange(SLOTS), plants + 1].mean(1)
        rollout.reward[-1] = paid + 0.05 * torch.randn(ENVS, generator=generator)
        teacher.record(round_, rollout)


def shown_schedules(teacher: Teacher, looks: tuple[float, ...]) -> list[list[int]]:
    """What is planted in a demonstration, in a host of each task in turn."""
    seen = shown_by(torch.tensor(looks), torch.Generator(), 0.0)
    teacher.assign(SEARCH + 1, torch.arange(len(looks)), seen)
    return teacher.plants(range(len(looks)), teacher.plant_epoch, CPU).tolist()  # type: ignore[no-any-return]


def test_search_finds_the_best_schedule_of_each_task() -> None:
    teacher = new_teacher()
    search(teacher, range(1, SEARCH + 1))
    report = teacher.report(SEARCH)
    assert report.schedules == {
        "digits": [None, "depthwise"],
        "texture": ["norm", "depthwise"],
        "histogram": [None, None],
    }
    assert report.worth == pytest.approx({"digits": 0.9, "texture": 0.9, "histogram": 0.9}, abs=0.05)
    assert sum(report.tried.values()) == SEARCH * ENVS
    assert (report.stage, report.recognised) == ("search", None)


def test_task_that_was_never_drawn_is_not_told() -> None:
    teacher = new_teacher()
    teacher.assign(1, torch.arange(ENVS) % 2, torch.zeros(2, ENVS, len(BASE_COLUMNS.names)))
    teacher.record(1, Rollout.zeros(EPOCHS, ENVS, SLOTS))
    report = teacher.report(1)
    assert report.schedules.keys() == report.worth.keys() == {"digits", "texture"}
    assert report.tried == {"digits": ENVS // 2, "texture": ENVS // 2, "histogram": 0}


def test_findings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    found: dict[str, list[str | None]] = {"digits": ["norm", None], "text": [None]}
    report = TeacherReport("search", 9, found, {"digits": 0.5, "text": 0.0}, {"digits": 7, "text": 9})
    with caplog.at_level(logging.INFO):
        log_findings(report)
    assert caplog.messages == [
        "teacher: digits: norm in slot 0; worth 0.500 after 7 episodes",
        "teacher: text: no seed; worth 0.000 after 9 episodes",
    ]


def test_demonstrations_follow_what_hosts_look_like() -> None:
    teacher = new_teacher()
    search(teacher, range(1, SEARCH + 1))
    assert shown_schedules(teacher, (0.0, 1.0, 2.0)) == [[-1, 1], [0, 1], [-1, -1]]
    assert teacher.report(SEARCH + 1).recognised == 1.0


def test_tasks_that_look_alike_share_a_schedule() -> None:
    """A norm in slot 0 gains .45 on texture and costs .4 on digits: worth it where nobody knows which."""
    teacher = new_teacher()
    search(teacher, range(1, SEARCH + 1), looks=(0.0, 0.0, 1.0), noise=0.0)
    assert shown_schedules(teacher, (0.0, 0.0, 1.0)) == [[0, 1], [0, 1], [-1, -1]]


def test_hosts_of_the_search_are_imitated_as_shown() -> None:
    """Their beginnings have the actions of the schedules found, up to the first step that was another."""
    teacher = new_teacher()
    search(teacher, range(1, SEARCH + 1))
    whole, beginnings = teacher.lessons(CPU)
    task_N = teacher.state_dict()["records"]["task"]
    first, second = beginnings.rollout.actions[:2, :, :3]
    assert (first == 0).all()
    expected = torch.tensor([[Op.GERMINATE, 1, 1], [Op.GERMINATE, 0, 0], [Op.WAIT, 0, 0]])
    assert torch.equal(second, expected[task_N])
    waited = task_N == 2  # as all hosts of this test have done
    steps = torch.tensor([True, True, False, False]).unsqueeze(1) | waited
    assert torch.equal(beginnings.is_imitated_TN, steps)
    assert whole.is_imitated_TN.all()
    assert (whole.is_whole, beginnings.is_whole) == (True, False)
    assert teacher.state_dict()["beginnings"]["reward"].shape[1] == 0


def test_search_goes_on_bit_for_bit_after_a_resume() -> None:
    whole = new_teacher()
    search(whole, range(1, SEARCH + 1))
    for cut in (4, SEARCH // 2, 9):
        half, resumed = new_teacher(), new_teacher()
        search(half, range(1, cut + 1))
        resumed.load_state_dict(copy.deepcopy(half.state_dict()))
        search(resumed, range(cut + 1, SEARCH + 1))
        for name, value in whole.state_dict()["records"].items():
            assert torch.equal(value, resumed.state_dict()["records"][name]), name


def test_too_many_schedules_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 blueprints in 8 slots make 6561 schedules, more than 4096"):
        Teacher(config(), ActionSpace(8, 2))


def demonstrate(cfg: Config, agent: Agent, round_: int, taught: bool = True) -> Rollout:
    """An episode of hosts of two kinds; what they are shows in their loss from the second epoch on."""
    kind_N = torch.arange(ENVS) % 2
    plant_NS = torch.tensor([[-1, 1], [0, -1]])[kind_N]
    agent.begin_episode(round_)
    lifecycle, table = Lifecycle(cfg), SlotTable.empty(ENVS, SLOTS)
    measured = Measurements.unmeasured(ENVS, SLOTS)
    rollout = Rollout.zeros(EPOCHS, ENVS, SLOTS)
    for epoch in range(EPOCHS):
        if taught:
            agent.rule = schedules(plant_NS if epoch >= 2 else torch.full_like(plant_NS, -1))
        lifecycle.advance(table, measured)
        legal = lifecycle.legal(table, measured)
        decision = agent.act(table, measured, legal, epoch)
        lifecycle.apply(table, decision.actions, legal, measured)
        agent.record_action(decision)
        rollout.store(epoch, decision, kind_N / EPOCHS)
        generator = torch.Generator().manual_seed(100 * round_ + epoch)
        measured.val_loss = measured.train_loss = 2 + kind_N + 0.1 * torch.rand(ENVS, generator=generator)
        measured.seed_grad_norm = torch.where(table.stage == Stage.TRAINING, 0.3, torch.nan)
        measured.seed_health = torch.where(table.stage == Stage.TRAINING, 1.0, torch.nan)
    agent.rule = None
    return rollout


def planted(rollout: Rollout) -> list[list[tuple[int, int, int]]]:
    """By env (epoch, slot, blueprint) of all that was planted."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in ALL]
    for epoch, env in (rollout.actions[..., 0] == Op.GERMINATE).nonzero().tolist():
        slot, blueprint = rollout.actions[epoch, env, 1:3].tolist()
        found[env].append((epoch, slot, blueprint))
    return found


def learner(*sets: str) -> tuple[Config, Agent, PPO]:
    cfg = config(*sets)
    agent = Agent(cfg, slots=SLOTS, host_parameters=100)
    assert agent.ppo is not None
    return cfg, agent, agent.ppo


@pytest.mark.slow
def test_policy_comes_to_do_what_it_was_shown() -> None:
    cfg, agent, ppo = learner()
    shown = [demonstrate(cfg, agent, round_) for round_ in range(1, 9)]
    assert planted(shown[0]) == [[(2, 1, 1)], [(2, 0, 0)]] * (ENVS // 2)
    lesson = Lesson.whole(Rollout.joined(shown))
    ppo.network.learn_normalisers(lesson.rollout.observation)
    few, many = (
        imitate(ppo, [lesson], 1, passes=passes, minibatches=8, learning_rate=0.003) for passes in (1, 30)
    )
    assert many < 0.1 * few
    assert not ppo.optimizer.state
    agent.greedy = True
    assert planted(demonstrate(cfg, agent, 9, taught=False)) == planted(shown[0])


@pytest.mark.slow
def test_beginnings_alone_teach_what_is_planted_first() -> None:
    cfg, agent, ppo = learner()
    shown = Rollout.joined([demonstrate(cfg, agent, round_) for round_ in range(1, 9)])
    ppo.network.learn_normalisers(shown.observation)
    critic = ppo.network.critic.bias.detach().clone()
    steps = torch.ones(3, 8 * ENVS, dtype=torch.bool)
    lesson = Lesson(shown.epochs(3), steps, is_whole=False)
    imitate(ppo, [lesson], 1, passes=40, minibatches=8, learning_rate=0.003)
    assert torch.equal(ppo.network.critic.bias, critic)  # nothing says what they earn
    agent.greedy = True
    first = [row[0] for row in planted(demonstrate(cfg, agent, 9, taught=False))]
    assert first == [(2, 1, 1), (2, 0, 0)] * (ENVS // 2)


@pytest.mark.slow
def test_critic_learns_discounted_returns() -> None:
    cfg, agent, ppo = learner("ppo.gamma=0.5")
    shown = Rollout.joined([demonstrate(cfg, agent, round_) for round_ in range(1, 9)])
    network = ppo.network
    network.learn_normalisers(shown.observation)
    imitate(ppo, [Lesson.whole(shown)], 1, passes=30, minibatches=8, learning_rate=0.003)
    left_T = torch.arange(EPOCHS, 0, -1, dtype=torch.float64)
    return_T = (1 - 0.5**left_T) / (1 - 0.5) / EPOCHS  # of a host that is paid 1 / EPOCHS in each epoch
    with torch.no_grad():
        out = network(shown.observation, network.initial(8 * ENVS), shown.reset)
        value_TN = network.value(out.value).double()
    for kind, expected_T in enumerate((0 * return_T, return_T)):
        mean_T = value_TN[:, kind::2].mean(1)
        torch.testing.assert_close(mean_T[3:], expected_T[3:], atol=0.02, rtol=0)


def test_imitation_keeps_weights_where_a_gradient_is_not_finite() -> None:
    cfg, agent, ppo = learner()
    rollout = demonstrate(cfg, agent, 1)
    before = copy.deepcopy(ppo.network.state_dict())
    rollout.observation.base[..., -1] = torch.inf
    imitate(ppo, [Lesson.whole(rollout)], 1, passes=1, minibatches=2, learning_rate=0.1)
    for name, parameter in ppo.network.named_parameters():
        if not name.startswith("critic"):  # rescaled by what the returns are, not by a step
            assert torch.equal(parameter, before[name]), name
