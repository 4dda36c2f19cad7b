"""Episodes of N hosts that grow as an actor decides: the part of the loop that training and evaluation share.

Before each epoch the actor picks one action per host; the hosts train on their batches and are validated;
what they gained, less what they cost, is the reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES

from .compute.compiler import Compiler
from .compute.cuda_graphs import CudaGraphs
from .config.schema import Config
from .data.task import Task
from .governor import Governor
from .hooks import EpochReports, Hooks
from .hosts.population import Population
from .measurements import Measurements
from .policy.actor import Actor
from .policy.rollout import Decision, Rollout
from .reward.compute import Reward, total
from .reward.modes import RunContext
from .seeds.lifecycle import Checks, Lifecycle
from .telemetry.columns import decision_columns, final_columns, outcome_columns
from .telemetry.transfer import HostFrame, Transfer

TOPOLOGY = ("stage", "blueprint", "style", "contribution_age")
"""Columns of the slot table that the population plans an epoch by."""


class Episodes:
    """N hosts and what decides about them, from one episode to the next.

    Args:
        cfg: of the run, with this rank's number of envs.
        data: what is learned, on the device.
        population: the hosts.
        actor: decides for them.
        compiler: of the reward; None = uncompiled.

    Attributes:
        rollout: the present episode's experience.
        round: episodes begun.
        epoch: epochs finished of the present one.
    """

    def __init__(
        self, cfg: Config, data: Task, population: Population, actor: Actor, compiler: Compiler | None = None
    ) -> None:
        self.cfg, self.population, self.actor = cfg, population, actor
        self.table = table = population.table
        (n, slots), device = table.shape, table.stage.device
        self.lifecycle = Lifecycle(cfg)
        reward_context = RunContext(
            cfg.reward,
            cfg.ppo.gamma,
            cfg.episode_epochs,
            data.chance,
            population.parameters_host,
            self.lifecycle.min_training_epochs,
            math.log(data.perplexity),
        )
        self.reward = Reward(reward_context, n, slots, device, compiler)
        self.governor = Governor(population, data.perplexity, data.chance, cfg.governor)
        if population.tasks.guess is not None:
            self.reward.guess = self.governor.guess = population.tasks.guess
        self.rollout = Rollout.zeros(cfg.episode_epochs, n, slots, device)
        self.measurements = Measurements.unmeasured(n, slots, device)
        self.decision: Decision | None = None
        self.reports = EpochReports(TOPOLOGY, may_be_late=device.type == "cuda")
        self.round = 0
        self.epoch = 0
        self._advance, self._execute = self.advance, self.execute

    @property
    def to_host(self) -> Transfer:
        """Moves columns to the host, and counts the waits."""
        return self.reports.to_host

    def capture(self, graphs: CudaGraphs) -> None:
        """Let governor, transitions and actions be captured as CUDA graphs."""
        self.governor.capture(graphs)
        table = list(vars(self.table).values())
        self._advance = graphs.wrap("the transitions", self.advance, changes=lambda: table)
        self._execute = graphs.wrap("the actions", self.execute, changes=lambda: table)

    def play(self, hooks: Hooks) -> None:
        """One episode of all envs, from the present epoch on."""
        epochs = self.cfg.episode_epochs
        if self.epoch == 0:
            self.begin_episode(hooks)
        while self.epoch < epochs:
            self.reports.begin_epoch(hooks, self.epoch, epochs)
            try:
                with hooks.phase("train"):
                    trained = self.population.run_epoch(
                        self.round,
                        self.epoch,
                        layers=hooks.layer_envs,
                        growth=self.epoch + 1 in self.actor.look_epochs,
                    )
            except Exception:
                with suppress(Exception):  # of the two, the failure is what is to be known
                    self.reports.report_late(hooks, self.epoch, epochs)
                raise
            self.measurements, layers, seconds, scaling = trained
            hooks.on_phase_times(seconds)
            self.reports.report_late(hooks, self.epoch, epochs)
            with hooks.phase("reward"):
                verdict = self.governor.roll_back_failed(self.measurements, self.epoch + 1)
                rolled_back = verdict["governor.ill"] > 0
                self.actor.reset_hidden(rolled_back)
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
            if self.epoch < epochs:
                columns |= self.decide(hooks)
            else:
                columns |= final_columns(self.table, self.population.tested_parameters())
            self.transfer(columns, hooks, layers.names if layers else ())
            self.reports.end_epoch(hooks, self.round, self.epoch)

    def begin_episode(self, hooks: Hooks) -> None:
        """N fresh hosts, and the first decision about them."""
        self.round += 1
        hooks.on_round_begin(self.round)
        self.population.begin_episode(self.round)
        self.actor.begin_episode(self.round)
        self.reward.begin_episode()
        self.governor.begin_episode()
        self.measurements = Measurements.unmeasured(*self.table.shape, self.table.stage.device)
        self.transfer(self.decide(hooks), hooks)

    def decide(self, hooks: Hooks) -> dict[str, Tensor]:
        """Apply automatic transitions, then the policy's actions; the columns describe both."""
        with hooks.phase("decide"):
            before, advanced, automatic, legal, vetoes = self._advance(self.measurements)
            self.decision = self.actor.act(self.table, self.measurements, legal, self.epoch)
        with hooks.phase("act"):
            actions, likelihood = self.decision.actions, self.decision.likelihood
            gates, executed = self._execute(self.measurements, actions, legal)
            self.actor.record_action(self.decision)
        columns = decision_columns(
            stage_before=before,
            stage_advanced=advanced,
            table=self.table,
            actions=actions,
            gates=gates | automatic,
            executed=executed,
            vetoes=vetoes,
            judgement=None if likelihood is None else (likelihood, self.decision.value),
        )
        return columns | {"style": self.table.style, "contribution_age": self.table.contribution_age}

    def advance(self, measurements: Measurements) -> tuple[Tensor, Tensor, dict[str, Checks], Tensor, Tensor]:
        """Apply automatic transitions: stages before and after them, their checks, `legal_actions`."""
        before = self.table.stage.clone()
        automatic = self.lifecycle.advance(self.table, measurements)
        return before, self.table.stage.clone(), automatic, *self.legal_actions(measurements)

    def execute(
        self, measurements: Measurements, actions: Tensor, legal: Tensor
    ) -> tuple[dict[str, Checks], Tensor]:
        """Apply the actions int64 [N, heads]: the checks of all gates, and bool [N] which were executed."""
        blueprint = actions[:, HEAD_NAMES.index("blueprint")]
        gates = self.lifecycle.gates(self.table, measurements, blueprint)
        return gates, self.lifecycle.apply(self.table, actions, legal, measurements)

    def legal_actions(self, measurements: Measurements) -> tuple[Tensor, Tensor]:
        """Legal actions bool [N, ops, S], and what other gates allow but the governor forbids.

        The latter are codes of `governor.VetoReason`, int64 [N, ops, S].
        """
        legal = self.lifecycle.legal(self.table, measurements)
        vetoes = torch.where(legal, self.governor.vetoes(measurements), 0)
        return legal & (vetoes == 0), vetoes

    def transfer(self, columns: dict[str, Tensor], hooks: Hooks, layers: Sequence[str] = ()) -> None:
        """Tell the host: the hooks, and for the topology of the coming epoch, which is waited for."""
        is_between = self.reports.may_be_late and 0 < self.epoch < self.cfg.episode_epochs
        passes = is_between and hooks.passes_epoch_end(self.round, self.epoch)
        frame = self.reports.report(hooks, columns, layers, passes=passes)
        if "stage" in frame:
            self.set_topology(frame)

    def set_topology(self, frame: HostFrame) -> None:
        """Plan the coming epoch by the slot table's columns on the host."""
        self.population.set_topology(*(frame[name] for name in TOPOLOGY))
