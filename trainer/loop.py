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
from .hooks import Hooks
from .hosts.autotune import choose_execution, create_population
from .measurements import Measurements
from .policy.agent import Agent
from .policy.gae import advantages
from .policy.observation import Observation
from .policy.rollout import Decision, Rollout
from .policy.update_statistics import UpdateStatistics
from .telemetry.columns import shapley_columns
from .telemetry.transfer import HostFrame


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
        self.evaluator: Evaluator | None = None
        if cfg.evaluation.rounds:
            self.evaluator = Evaluator(cfg, data, device, population.execution, process_group)
        self.capture(self.graphs)
        compiled = self.compiler.wrap("the advantages", advantages, loops=True)
        self._advantages = self.graphs.wrap("the advantages", compiled)
        self.best_return = -math.inf
        self._whole: Rollout | None = None

    def run(self, hooks: Hooks) -> None:
        """Train round after round for as long as the hooks want another."""
        while self.epoch > 0 or hooks.wants_round(self.round):
            self.play(hooks)
            self.end_round(hooks)

    def end_round(self, hooks: Hooks) -> None:
        """Learn from the episode that was played, test the hosts, judge the policy."""
        # Graphs of the update know it by its memory.
        self._whole = rollout = self.rollout.all_gather(self.process_group, self._whole)
        update = self.learn(rollout, hooks)
        columns = self.test(hooks)
        self.epoch = 0
        hooks.on_round_end(self.round, update, columns)
        self.evaluate(rollout.reward, hooks)

    def learn(self, rollout: Rollout, hooks: Hooks) -> UpdateStatistics | None:
        """One update by the round's rollout, of all ranks' envs; none where the policy is frozen."""
        ppo, cfg = self.agent.ppo, self.cfg
        if ppo is None or not cfg.policy.learn:
            return None
        with hooks.phase("update"):
            advantage, returns = self._advantages(
                rollout.reward,
                rollout.value,
                cfg.ppo.gamma,
                cfg.ppo.gae_lambda,
                cfg.policy.decision_epochs,
                cfg.envs.copies,
            )
            return ppo.update(rollout, advantage, returns)

    def test(self, hooks: Hooks) -> HostFrame:
        """Columns of the round's end: accuracy on the test images and, where they are due, Shapley values."""
        with hooks.phase("test"):
            columns = {"test_accuracy": self.population.test()[1].cpu().numpy()}
        every = self.cfg.validation.shapley_every
        if every and self.round % every == 0:
            with hooks.phase("shapley"):
                columns |= shapley_columns(self.population.shapley(self.round))
        return columns

    def evaluate(self, reward_TN: Tensor, hooks: Hooks) -> None:
        """Play on held-out hosts what is due, and judge the policy."""
        is_best = self.is_best_round(reward_TN)
        evaluations: list[PolicyEvaluation] = []
        if self.evaluator is not None:
            with hooks.phase("evaluate"):
                evaluations = self.evaluator.evaluate(self.round, self.agent.network, hooks.on_progress)
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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict` of a run with the same configuration."""
        device = self.table.stage.device
        self.agent.load_state_dict(state["agent"])  # first, since it tells whether the checkpoint fits
        self.round, self.epoch = state["round"], state["epoch"]
        self.population.load_state_dict(state["population"])
        self.population.draw_tasks(self.round)
        self.reward.load_state_dict(state["reward"])
        self.governor.load_state_dict(state["governor"])
        self.rollout.load_state_dict(state["rollout"])
        if self.evaluator is not None and state.get("evaluation") is not None:
            self.evaluator.load_state_dict(state["evaluation"])
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
