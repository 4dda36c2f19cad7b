"""A run whose first rounds are a teacher's: it tries schedules, shows them, and the policy imitates it.

See `policy.teacher`; what follows is PPO.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.hooks import Hooks, Learned
from esper_overwatch.trainer.loop import Trainer as Trainer
from esper_overwatch.trainer.policy.actions import ActionSpace, Logits
from esper_overwatch.trainer.policy.baselines import schedules
from esper_overwatch.trainer.policy.imitation import imitate
from esper_overwatch.trainer.policy.observation import Observation
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.policy.teacher import Teacher, TeacherReport, log_findings


class TaughtTrainer(Trainer):
    """A `Trainer` with a teacher; takes the same arguments.

    Attributes:
        teacher: decides, and lets the policy imitate it, in its rounds.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.teacher = Teacher(self.cfg, self.agent.space)

    @property
    def is_taught(self) -> bool:
        """True if this round is the teacher's."""
        return self.round <= self.teacher.rounds

    @property
    def has_learnt(self) -> bool:
        """True from the round on in which the policy has imitated the teacher."""
        return self.round >= self.teacher.rounds

    def is_best_round(self, reward_TN: Tensor) -> bool:
        """True if the finished round is PPO's and its mean return the highest so far."""
        return not self.is_taught and super().is_best_round(reward_TN)

    def begin_acting(self) -> None:
        """Prepare the agent for an episode."""
        super().begin_acting()
        self.set_rule()

    def set_rule(self) -> None:
        """Let the teacher decide in its rounds, after them the network."""
        self.agent.rule = self.follow_teacher if self.is_taught else None

    def follow_teacher(self, space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
        """The rule of a teacher's rounds: nothing until its epoch, then the schedules that it assigns."""
        if self.epoch == self.teacher.plant_epoch:
            seen_TN = torch.cat([self.rollout.observation.base[: self.epoch], seen.base.unsqueeze(0)])
            seen_TN = self.process_group.all_gather(seen_TN, dim=1)
            self.teacher.assign(self.round, self.task_numbers(), seen_TN)
            self.process_group.broadcast_([self.teacher.chosen_N])  # another machine may round otherwise
        plant_NS = self.teacher.plants(self.rows, self.epoch, legal.device)
        return schedules(plant_NS)(space, legal, blueprint, seen)

    def task_numbers(self) -> Tensor:
        """int64 [N], the tasks that the envs of all ranks have drawn, by their place in the mixture."""
        numbers = self.population.tasks.numbers
        if numbers is None:
            numbers = torch.zeros_like(self.table.stage[:, 0])
        return self.process_group.all_gather(numbers, dim=0)

    def learn(self, rollout: Rollout, hooks: Hooks) -> Learned | None:
        """Let the teacher record what was tried or shown; after its last round imitate it; then PPO."""
        if not self.is_taught:
            return super().learn(rollout, hooks)
        with hooks.phase("update"):
            return self.follow_lessons(rollout, hooks)

    def follow_lessons(self, rollout: Rollout, hooks: Hooks) -> TeacherReport:
        """The teacher's round, and what it knows after it."""
        teacher, learner, options = self.teacher, self.agent.ppo, self.cfg.teacher
        assert learner is not None
        learner.network.learn_normalisers(rollout.observation)
        teacher.record(self.round, rollout)
        loss = None
        if self.round == teacher.rounds:
            lessons = teacher.lessons(rollout.reward.device)
            loss = imitate(
                learner,
                lessons,
                self.round,
                passes=options.passes,
                minibatches=options.demonstration_rounds,
                learning_rate=options.learning_rate,
                on_pass=hooks.on_progress,
            )
            self.process_group.broadcast_(list(learner.network.parameters()))
        report = teacher.report(self.round, loss)
        if self.round == options.search_rounds and self.process_group.rank == 0:
            log_findings(report)
        return report

    def state_dict(self) -> dict[str, Any]:
        """As of `Trainer`, with the teacher's findings."""
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        super().load_state_dict(state)
        if state.get("teacher") is not None:
            self.teacher.load_state_dict(state["teacher"])
        self.set_rule()


def trainer_class(cfg: Config) -> type[Trainer]:
    """The class of a run's trainer: with a teacher where the configuration asks for one."""
    return TaughtTrainer if cfg.taught_rounds else Trainer
