"""A run's first rounds are the teacher's: what follows is PPO, and a resume goes on in any of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.episode_table import PolicyEvaluation
from esper_overwatch.trainer.hooks import Learned, StopRun
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.saved_policy import SavedPolicy
from esper_overwatch.trainer.policy.teacher import TeacherReport
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.ranks.rank_states import redistribute
from esper_overwatch.trainer.teaching.taught_trainer import trainer_class
from esper_overwatch.trainer.telemetry.transfer import HostFrame
from tests.cases import nightly
from tests.trainer.ranks.test_rank_states import StopHooks, assert_equal, loaded

CONFIG = load(
    sets=[
        "device=cpu",
        "task.mixture=texture,histogram",
        "envs.count=4",
        "envs.threads=1",
        "episode_epochs=8",
        "task.batches_per_epoch=2",
        "task.batch_size=16",
        "host.channels=4,4",
        "policy.hidden=16",
        "ppo.epochs=1",
        "seeds.blueprints=norm,depthwise",
        "teacher.search_rounds=2",
        "teacher.demonstration_rounds=2",
        "teacher.passes=2",
        "teacher.plant_epoch=3",
    ]
)
ROUNDS = 5


class Watch(StopHooks):
    """Keeps the frames and updates of `ROUNDS` rounds."""

    def __init__(self, stop: tuple[int, int] | None = None) -> None:
        super().__init__(stop)
        self.updates: list[bool] = []
        self.rates: list[float] = []
        self.reports: list[TeacherReport] = []
        self.best: list[bool] = []
        self.progress: list[tuple[int, int]] = []
        self.evaluated: list[tuple[int, str]] = []

    def wants_round(self, finished: int) -> bool:
        return finished < ROUNDS

    def on_round_end(self, round: int, update: Learned | None, frame: HostFrame) -> None:
        self.updates.append(isinstance(update, UpdateStatistics))
        if isinstance(update, UpdateStatistics):
            self.rates.append(update.learning_rate)
        if isinstance(update, TeacherReport):
            self.reports.append(update)
        self.frames.append(frame)

    def on_progress(self, done: int, total: int) -> None:
        self.progress.append((done, total))

    def on_round_evaluated(
        self, round: int, evaluations: Sequence[PolicyEvaluation], *, is_best: bool
    ) -> None:
        self.best.append(is_best)
        self.evaluated += [(round, evaluation.policy) for evaluation in evaluations]


def build(cfg: Config = CONFIG, process_group: ProcessGroup | None = None) -> Trainer:
    torch.set_num_threads(1)
    data, cpu = load_task(cfg.task, torch.device("cpu")), torch.device("cpu")
    return trainer_class(cfg)(cfg, data, cpu, process_group=process_group)


@pytest.fixture(scope="module")
def whole() -> tuple[Trainer, Watch]:
    trainer, hooks = build(), Watch()
    trainer.run(hooks)
    return trainer, hooks


def weights(trainer: Trainer) -> dict[str, Any]:
    return trainer.agent.state_dict()["network"]  # type: ignore[no-any-return]


@pytest.mark.slow
def test_ppo_begins_after_the_teacher(whole: tuple[Trainer, Watch]) -> None:
    _, hooks = whole
    assert hooks.updates == [False, False, False, False, True]


def test_teacher_tells_what_it_knows(whole: tuple[Trainer, Watch]) -> None:
    reports = whole[1].reports
    assert [report.stage for report in reports] == ["search"] * 2 + ["demonstration"] * 2
    assert [sum(report.tried.values()) for report in reports] == [4, 8, 8, 8]
    assert [report.imitation_loss is not None for report in reports] == [False, False, False, True]
    assert all(0.0 <= (report.recognised or 0.0) <= 1.0 for report in reports)


def test_each_pass_of_the_imitation_is_told(whole: tuple[Trainer, Watch]) -> None:
    assert whole[1].progress == [(1, 2), (2, 2)]


def test_no_round_of_the_teacher_is_the_best(whole: tuple[Trainer, Watch]) -> None:
    assert whole[1].best == [False, False, False, False, True]


@pytest.mark.slow
def test_policy_is_evaluated_from_its_imitation_on() -> None:
    evaluation = replace(CONFIG.evaluation, rounds=2, hosts=2, rivals=("no_growth",))
    hooks = Watch()
    build(replace(CONFIG, evaluation=evaluation)).run(hooks)
    assert hooks.evaluated == [(1, "no_growth"), (4, "ppo")]
    assert hooks.best == [False, False, False, True, False]


@pytest.mark.slow
def test_learning_rate_falls_over_the_rounds_of_ppo() -> None:
    ppo = replace(CONFIG.ppo, schedule="linear")
    hooks = Watch()
    hooks.wants_round = lambda finished: finished < CONFIG.teacher.rounds + 2  # type: ignore[method-assign]
    build(replace(CONFIG, ppo=ppo, rounds=CONFIG.teacher.rounds + 2)).run(hooks)
    assert hooks.rates == pytest.approx([CONFIG.ppo.learning_rate, CONFIG.ppo.learning_rate / 2])


@pytest.mark.slow
def test_policy_of_a_file_has_no_teacher(tmp_path: Path) -> None:
    file = tmp_path / "first.policy"
    state = {"trainer": build().state_dict(), "config": msgspec.json.encode(CONFIG).decode()}
    SavedPolicy.of_checkpoint(state, "mine", "0.2.0", "best.pt").write(file)
    taught = replace(CONFIG, policy=replace(CONFIG.policy, file=str(file)))
    assert taught.taught_rounds == 0
    assert type(build(taught)) is Trainer


@pytest.mark.slow
@pytest.mark.parametrize("stop", [nightly((2, 3)), (3, 6), nightly((5, 2))])
def test_teacher_is_the_same_on_another_number_of_ranks(stop: tuple[int, int]) -> None:
    one = build()
    with pytest.raises(StopRun):
        one.run(Watch(stop))
    saved = {"trainer": one.state_dict(), "other_ranks": [], "parameters": {"host.learning_rate": 0.01}}
    for rank, state in enumerate(loaded(redistribute(saved, 2))):
        other = build(process_group=ProcessGroup(rank, 2))
        other.load_state_dict(state)
        assert_equal(other.state_dict()["teacher"], one.state_dict()["teacher"])


def test_teacher_plants_no_seed_before_its_epoch(whole: tuple[Trainer, Watch]) -> None:
    _, hooks = whole
    decided = [frame["op"] for frame in hooks.frames if "op" in frame]
    taught = np.stack(decided[: 4 * CONFIG.episode_epochs]).reshape(4, CONFIG.episode_epochs, -1)
    assert (taught[:, : CONFIG.teacher.plant_epoch] == Op.WAIT).all()
    assert (taught[:, CONFIG.teacher.plant_epoch] == Op.GERMINATE).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop", [(2, 3), (4, 6), nightly((1, 5)), nightly((3, 5)), nightly((4, 2)), nightly((5, 2))]
)
def test_run_resumed_while_taught_goes_on_alike(whole: tuple[Trainer, Watch], stop: tuple[int, int]) -> None:
    first = build()
    with pytest.raises(StopRun):
        first.run(Watch(stop))
    resumed, hooks = build(), Watch()
    resumed.load_state_dict(first.state_dict())
    resumed.run(hooks)
    expected = whole[1].frames[-len(hooks.frames) :]
    for one, other in zip(hooks.frames, expected, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    for name, weight in weights(resumed).items():
        assert torch.equal(weight, weights(whole[0])[name]), name
