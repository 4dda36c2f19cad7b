"""PPO over growing networks: the algorithm, in order.

A round is N episodes in lockstep and one PPO update. An episode is T epochs of N freshly built hosts. Before
each epoch the policy picks one action per host; the hosts train on their batches and are validated; what they
gained, less what they cost, is the reward. See docs/reference/training.md.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from .compute.compiler import Compiler
from .compute.cuda_graphs import CudaGraphs
from .compute.execution_plan import Execution
from .compute.process_group import ProcessGroup
from .config.schema import Config
from .data.task import Task
from .episode_table import PolicyEvaluation
from .episodes import TOPOLOGY, Episodes
from .evaluation.evaluator import Evaluator
from .hooks import Hooks, Learned
from .hosts.autotune import choose_execution, create_population
from .measurements import Measurements
from .policy.actions import ActionSpace, Logits
from .policy.agent import Agent
from .policy.baselines import schedules
from .policy.gae import advantages
from .policy.imitation import imitate
from .policy.observation import Observation
from .policy.rollout import Decision, Rollout
from .policy.teacher import Teacher, TeacherReport, log_findings
from .telemetry.columns import shapley_columns


class Trainer(Episodes):
    """The state of a training run; `state_dict` between two epochs holds all of it.

    Args:
        cfg: the run's configuration.
        data: what is learned, on the device.
        execution: how the hosts are trained; None = chosen here.
        process_group: the ranks that the envs are split over; N is this rank's share of them.
    """

    def __init__(
        self,
        cfg: Config,
        data: Task,
        device: torch.device,
        execution: Execution | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.process_group = process_group = process_group or ProcessGroup()
        self.rows, cfg = process_group.rows(cfg.envs.count), _share(cfg, process_group)
        own = cfg.compile.mode in ("reduce-overhead", "max-autotune")  # these make CUDA graphs themselves
        self.graphs = CudaGraphs(on=cfg.cuda.graphs and device.type == "cuda" and not own)
        execution = execution or choose_execution(cfg, data, device, self.graphs)
        population = create_population(cfg, data, device, execution, self.rows.start)
        self.compiler = Compiler(cfg.compile.mode, device, cfg.episode_epochs)
        population.compile(self.compiler, self.graphs)
        self.agent = Agent(
            cfg,
            slots=len(population.slots),
            host_parameters=population.parameters_host,
            device=device,
            first_env=self.rows.start,
            process_group=process_group,
            compiler=self.compiler,
            graphs=self.graphs,
        )
        super().__init__(cfg, data, population, self.agent, self.compiler)
        if cfg.envs.copies > 1:
            population.assign_envs(torch.arange(self.rows.start, self.rows.stop) // cfg.envs.copies)
        self.teacher: Teacher | None = None
        if cfg.taught_rounds:
            self.teacher = Teacher(cfg, self.agent.space)
        self.evaluator: Evaluator | None = None
        if cfg.evaluation.rounds:
            self.evaluator = Evaluator(cfg, data, device, population.execution, process_group)
        self.capture(self.graphs)
        compiled = self.compiler.wrap("the advantages", advantages, loops=True)
        self._advantages = self.graphs.wrap("the advantages", compiled)
        self.best_return = -math.inf

    def run(self, hooks: Hooks) -> None:
        """Train round after round for as long as the hooks want another."""
        while self.epoch > 0 or hooks.wants_round(self.round):
            self.play(hooks)
            self.learn(hooks)

    def begin_acting(self) -> None:
        """Prepare the agent for an episode."""
        super().begin_acting()
        self.set_rule()

    def set_rule(self) -> None:
        """Let the teacher decide in its rounds, after them the network."""
        if self.agent.ppo is not None:
            self.agent.rule = self.follow_teacher if self.is_taught else None

    def follow_teacher(self, space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
        """The rule of a teacher's rounds: nothing until its epoch, then the schedules that it assigns."""
        assert self.teacher is not None
        if self.epoch == self.teacher.plant_epoch:
            seen_TN = torch.cat([self.rollout.observation.base[: self.epoch], seen.base.unsqueeze(0)])
            seen_TN = self.process_group.all_gather(seen_TN, dim=1)
            self.teacher.assign(self.round, self.task_numbers(), seen_TN)
            self.process_group.broadcast_([self.teacher.chosen_N])  # another machine may round otherwise
        plant_NS = self.teacher.plants(self.rows, self.epoch, legal.device)
        return schedules(plant_NS)(space, legal, blueprint, seen)

    @property
    def is_taught(self) -> bool:
        """True if this round is the teacher's."""
        return self.teacher is not None and self.round <= self.teacher.rounds

    def task_numbers(self) -> Tensor:
        """int64 [N], the tasks that the envs of all ranks have drawn, by their place in the mixture."""
        numbers = self.population.tasks.numbers
        if numbers is None:
            numbers = torch.zeros_like(self.table.stage[:, 0])
        return self.process_group.all_gather(numbers, dim=0)

    def learn(self, hooks: Hooks) -> None:
        """One update by the round's rollout, of PPO or by the teacher's; none where the policy is frozen."""
        update: Learned | None = None
        if self.agent.ppo is None or not self.cfg.policy.learn:
            reward_TN = self.process_group.all_gather(self.rollout.reward, dim=1)
        else:
            with hooks.phase("update"):
                ppo = self.cfg.ppo
                rollout = self.rollout.all_gather(self.process_group)
                reward_TN = rollout.reward
                if self.is_taught:
                    update = self.follow_lessons(rollout, hooks)
                else:
                    advantage, returns = self._advantages(
                        rollout.reward,
                        rollout.value,
                        ppo.gamma,
                        ppo.gae_lambda,
                        self.cfg.policy.decision_epochs,
                        self.cfg.envs.copies,
                    )
                    update = self.agent.ppo.update(rollout, advantage, returns)
        with hooks.phase("test"):
            columns = {"test_accuracy": self.population.test()[1].cpu().numpy()}
        every = self.cfg.validation.shapley_every
        if every and self.round % every == 0:
            with hooks.phase("shapley"):
                columns |= shapley_columns(self.population.shapley(self.round))
        self.epoch = 0
        hooks.on_round_end(self.round, update, columns)
        self.evaluate(reward_TN, hooks)

    def follow_lessons(self, rollout: Rollout, hooks: Hooks) -> TeacherReport:
        """Let the teacher record what was tried or shown; after its last round imitate it."""
        teacher, learner, options = self.teacher, self.agent.ppo, self.cfg.teacher
        assert teacher is not None
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

    def evaluate(self, reward_TN: Tensor, hooks: Hooks) -> None:
        """Play on held-out hosts what is due, and judge the policy."""
        is_best = not self.is_taught and self.is_best_round(reward_TN)
        evaluations: list[PolicyEvaluation] = []
        if self.evaluator is not None:
            with hooks.phase("evaluate"):
                network, on_epoch = self.agent.network, hooks.on_progress
                has_learnt = self.teacher is None or self.round >= self.teacher.rounds
                evaluations = self.evaluator.evaluate(self.round, network, on_epoch, has_learnt=has_learnt)
            if self.evaluator.has_judged:
                is_best = any(evaluation.is_best for evaluation in evaluations)
        hooks.on_round_evaluated(self.round, evaluations, is_best=is_best)

    def is_best_round(self, reward_TN: Tensor) -> bool:
        """True if the finished round's mean return, over the envs of all ranks, is the highest so far.

        Read outside `to_host`, which counts the waits of epochs; the test images were waited for just before.
        """
        mean_return = float(reward_TN.cpu().numpy().sum(0, dtype=np.float64).mean())
        is_best = mean_return > self.best_return
        self.best_return = max(self.best_return, mean_return)
        return is_best

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on: tensors, numbers and containers of them."""
        decision = None
        if self.decision is not None and self.epoch > 0:
            decision = {**vars(self.decision), "observation": vars(self.decision.observation)}
            del decision["likelihood"]  # the recorder has it
        return {
            "round": self.round,
            "epoch": self.epoch,
            "population": self.population.state_dict(),
            "agent": self.agent.state_dict(),
            "reward": self.reward.state_dict(),
            "governor": self.governor.state_dict(),
            "rollout": self.rollout.state_dict(),
            "signals": {f.name: getattr(self.measurements, f.name) for f in fields(self.measurements)},
            "decision": decision,
            "evaluation": self.evaluator.state_dict() if self.evaluator is not None else None,
            "teacher": self.teacher.state_dict() if self.teacher is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict` of a run with the same configuration."""
        device = self.table.stage.device
        self.agent.load_state_dict(state["agent"])  # first, since it tells whether the checkpoint fits
        self.round, self.epoch = state["round"], state["epoch"]
        self.population.load_state_dict(state["population"])
        self.population.draw_tasks(self.round)
        self.set_guess()
        self.reward.load_state_dict(state["reward"])
        self.governor.load_state_dict(state["governor"])
        self.rollout.load_state_dict(state["rollout"])
        if self.evaluator is not None and state.get("evaluation") is not None:
            self.evaluator.load_state_dict(state["evaluation"])
        if self.teacher is not None and state.get("teacher") is not None:
            self.teacher.load_state_dict(state["teacher"])
            self.set_rule()
        self.measurements = Measurements.of_state(state["signals"], device)
        if state["decision"] is not None:
            parts = dict(state["decision"])
            observation = Observation(**{k: v.to(device) for k, v in parts.pop("observation").items()})
            self.decision = Decision(observation=observation, **{k: v.to(device) for k, v in parts.items()})
        if self.epoch > 0:
            self.population.set_topology(*(getattr(self.table, name).cpu().numpy() for name in TOPOLOGY))


def _share(cfg: Config, process_group: ProcessGroup) -> Config:
    """The configuration with this rank's number of envs."""
    return replace(cfg, envs=replace(cfg.envs, count=len(process_group.rows(cfg.envs.count))))
