"""PPO over growing networks: the algorithm, in order.

A round is N episodes in lockstep and one PPO update. An episode is T epochs of N freshly built hosts. Before
each epoch the policy picks one action per host; the hosts train on their batches and are validated; what they
gained, less what they cost, is the reward. See docs/training.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from protocol.messages.vocabulary import HEAD_NAMES

from .compute.compiler import Compiler
from .compute.cuda_graphs import CudaGraphs
from .compute.execution_plan import Execution
from .compute.process_group import ProcessGroup
from .config.schema import Config
from .data.task import Task
from .governor import Governor
from .hooks import Hooks
from .hosts.autotune import choose_execution, create_population
from .measurements import Measurements
from .policy.agent import Agent
from .policy.gae import gae
from .policy.observation import Observation
from .policy.rollout import Decision, Rollout
from .reward.compute import Reward, total
from .reward.modes import RunContext
from .seeds.lifecycle import Lifecycle
from .telemetry.columns import decision_columns, outcome_columns, shapley_columns
from .telemetry.transfer import HostFrame, Transfer

TOPOLOGY = ("stage", "blueprint", "style", "contribution_age")
"""Columns of the slot table that the population plans an epoch by."""


class Trainer:
    """The state of a training run; `state_dict` between two epochs holds all of it.

    Args:
        cfg: the run's configuration.
        data: what is learned, on the device.
        device: where everything lives.
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
        first, cfg = process_group.rows(cfg.envs.count).start, _share(cfg, process_group)
        self.cfg = cfg
        self.population = create_population(
            cfg, data, device, execution or choose_execution(cfg, data, device), first
        )
        self.compiler = Compiler(cfg.compile.mode, device, cfg.episode_epochs)
        own = cfg.compile.mode in ("reduce-overhead", "max-autotune")  # these make CUDA graphs themselves
        self.graphs = CudaGraphs(on=cfg.cuda.graphs and device.type == "cuda" and not own)
        self.population.compile(self.compiler, self.graphs)
        n, slots = cfg.envs.count, len(self.population.slots)
        self.table = self.population.table
        self.lifecycle = Lifecycle(cfg)
        host_parameters = self.population.parameters_host
        self.agent = Agent(
            cfg,
            slots=slots,
            host_parameters=host_parameters,
            device=device,
            first_env=first,
            process_group=process_group,
            compiler=self.compiler,
            graphs=self.graphs,
        )
        reward_context = RunContext(
            cfg.reward,
            cfg.ppo.gamma,
            cfg.episode_epochs,
            data.chance,
            host_parameters,
            self.lifecycle.min_training_epochs,
            math.log(data.perplexity),
        )
        self.reward = Reward(reward_context, n, slots, device, self.compiler)
        self.gae = self.compiler.wrap("GAE", gae, loops=True)
        self.governor = Governor(self.population, data.perplexity, data.chance, cfg.governor)
        self.rollout = Rollout.zeros(cfg.episode_epochs, n, slots, device)
        self.measurements = Measurements.unmeasured(n, slots, device)
        self.decision: Decision | None = None
        self.to_host = Transfer()
        self.best_return = -math.inf
        self.round = 0
        self.epoch = 0

    def run(self, hooks: Hooks) -> None:
        """Train round after round for as long as the hooks want another."""
        while self.epoch > 0 or hooks.wants_round(self.round):
            self.play(hooks)
            self.learn(hooks)

    def play(self, hooks: Hooks) -> None:
        """One episode of all envs, from the present epoch on."""
        if self.epoch == 0:
            self.begin_episode(hooks)
        while self.epoch < self.cfg.episode_epochs:
            hooks.on_epoch_begin(self.epoch, self.cfg.episode_epochs)
            with hooks.phase("train"):
                trained = self.population.run_epoch(self.round, self.epoch, layers=hooks.layer_envs)
            self.measurements, layers, seconds, scaling = trained
            hooks.on_phase_times(seconds)
            with hooks.phase("reward"):
                verdict = self.governor.roll_back_failed(self.measurements, self.epoch + 1)
                rolled_back = verdict["governor.ill"] > 0
                self.agent.reset_hidden(rolled_back)
                assert self.decision is not None
                ops = self.decision.actions[:, 0]
                components = self.reward(self.table, self.measurements, self.epoch, rolled_back, ops)
                reward_N = total(components)
                self.rollout.store(self.epoch, self.decision, reward_N)
            self.epoch += 1
            columns = verdict | outcome_columns(
                measurements=self.measurements,
                reward=reward_N,
                components=components,
                layers=vars(layers) if layers else None,
                scaling=scaling,
            )
            if self.epoch < self.cfg.episode_epochs:
                columns |= self.decide(hooks)
            self.transfer(columns, hooks, layers.names if layers else ())
            hooks.on_epoch_end(self.round, self.epoch)

    def begin_episode(self, hooks: Hooks) -> None:
        """N fresh hosts, and the first decision about them."""
        self.round += 1
        hooks.on_round_begin(self.round)
        self.population.begin_episode(self.round)
        self.agent.begin_episode(self.round)
        self.reward.begin_episode()
        self.governor.begin_episode()
        self.set_guess()
        self.measurements = Measurements.unmeasured(*self.table.shape, self.table.stage.device)
        self.transfer(self.decide(hooks), hooks)

    def set_guess(self) -> None:
        """Tell those who compare with a guess what it is worth, where each env learns a task of its own."""
        guess = self.population.tasks.guess()
        if guess is not None:
            self.reward.guess = guess
            self.governor.guess = guess

    def decide(self, hooks: Hooks) -> dict[str, Tensor]:
        """Apply automatic transitions, then the policy's actions; the columns describe both."""
        with hooks.phase("decide"):
            before = self.table.stage.clone()
            automatic = self.lifecycle.advance(self.table, self.measurements)
            advanced = self.table.stage.clone()
            legal, vetoes = self.legal_actions()
            self.decision = self.agent.act(self.table, self.measurements, legal, self.epoch)
            blueprint = self.decision.actions[:, HEAD_NAMES.index("blueprint")]
            gates = self.lifecycle.gates(self.table, self.measurements, blueprint) | automatic
        with hooks.phase("act"):
            actions = self.decision.actions
            executed = self.lifecycle.apply(self.table, actions, legal, self.measurements)
            self.agent.record_action(self.decision)
        columns = decision_columns(
            stage_before=before,
            stage_advanced=advanced,
            table=self.table,
            actions=actions,
            gates=gates,
            executed=executed,
            vetoes=vetoes,
        )
        return columns | {"style": self.table.style, "contribution_age": self.table.contribution_age}

    def legal_actions(self) -> tuple[Tensor, Tensor]:
        """What may be done now, bool [N, ops, S], and what else the gates allow and the governor forbids.

        The latter are codes of `governor.VetoReason`, int64 [N, ops, S].
        """
        legal = self.lifecycle.legal(self.table, self.measurements)
        vetoes = torch.where(legal, self.governor.vetoes(self.measurements), 0)
        return legal & (vetoes == 0), vetoes

    def transfer(self, columns: dict[str, Tensor], hooks: Hooks, layers: Sequence[str] = ()) -> None:
        """The one transfer of an epoch: for the hooks, and for the topology of the coming epoch."""
        with hooks.phase("telemetry"):
            frame = self.to_host(columns)
            hooks.on_frame(frame, layers)
        if "stage" in frame:
            self.set_topology(frame)

    def set_topology(self, frame: HostFrame) -> None:
        """Plan the coming epoch by the slot table's columns on the host."""
        self.population.set_topology(*(frame[name] for name in TOPOLOGY))

    def learn(self, hooks: Hooks) -> None:
        """One PPO update over the round's rollout."""
        update = None
        if self.agent.ppo is None:
            reward_TN = self.process_group.all_gather(self.rollout.reward, dim=1)
        else:
            with hooks.phase("update"):
                ppo = self.cfg.ppo
                rollout = self.rollout.all_gather(self.process_group)
                reward_TN = rollout.reward
                advantage, returns = self.gae(
                    rollout.reward, rollout.value, gamma=ppo.gamma, lam=ppo.gae_lambda
                )
                update = self.agent.ppo.update(rollout, advantage, returns)
        with hooks.phase("test"):
            columns = {"test_accuracy": self.population.test()[1].cpu().numpy()}
        every = self.cfg.validation.shapley_every
        if every and self.round % every == 0:
            with hooks.phase("shapley"):
                columns |= shapley_columns(self.population.shapley(self.round))
        self.epoch = 0
        hooks.on_round_end(self.round, update, columns, is_best=self.is_best_round(reward_TN))

    def is_best_round(self, reward_TN: Tensor) -> bool:
        """Whether the finished round's mean return, over the envs of all ranks, is the highest so far.

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
        self.measurements = Measurements(**{k: v.to(device) for k, v in state["signals"].items()})
        if state["decision"] is not None:
            parts = dict(state["decision"])
            observation = Observation(**{k: v.to(device) for k, v in parts.pop("observation").items()})
            self.decision = Decision(observation=observation, **{k: v.to(device) for k, v in parts.items()})
        if self.epoch > 0:
            self.population.set_topology(*(getattr(self.table, name).cpu().numpy() for name in TOPOLOGY))


def _share(cfg: Config, process_group: ProcessGroup) -> Config:
    """The configuration with this rank's number of envs."""
    return replace(cfg, envs=replace(cfg.envs, count=len(process_group.rows(cfg.envs.count))))
