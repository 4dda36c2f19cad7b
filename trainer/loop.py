"""PPO over growing networks: the algorithm, in order.

A round is N episodes in lockstep and one PPO update. An episode is T epochs of N freshly built hosts. Before
each epoch the policy picks one action per host; the hosts train on their batches and are validated; what they
gained, less what they cost, is the reward. See docs/training.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from .compiled import Compiler
from .config import Config
from .data.task import Task
from .execution import Execution
from .governor import Governor
from .graphs import Graphs
from .hosts.sizing import measure, populate
from .policy.agent import Agent
from .policy.gae import gae
from .policy.observation import Observation
from .policy.rollout import Decision, Rollout
from .ranks import World
from .reward.kernel import Reward, total
from .reward.modes import Terms
from .seeds.lifecycle import Lifecycle
from .signals import Signals
from .telemetry.columns import decision_columns, outcome_columns, shapley_columns
from .watcher import Watcher

TOPOLOGY = ("stage", "blueprint", "style", "contribution_age")
"""Columns of the slot table that the population plans an epoch by."""


class Trainer:
    """The whole state of a training run; `state_dict` between two epochs holds all of it.

    Args:
        cfg: the run's configuration.
        data: what is learned, on the device.
        device: where everything lives.
        execution: how the hosts are trained; None = measured here.
        world: the ranks that the envs are split over; N is this rank's share of them.
    """

    def __init__(
        self, cfg: Config, data: Task, device: torch.device, execution: Execution | None = None,
        world: World | None = None,
    ) -> None:  # fmt: skip
        self.world = world = world or World()
        first, cfg = world.rows(cfg.envs.count).start, _share(cfg, world)
        self.cfg = cfg
        self.population = populate(cfg, data, device, execution or measure(cfg, data, device), first)
        self.compiler = Compiler(cfg.compile.mode, device, cfg.episode_epochs)
        own = cfg.compile.mode in ("reduce-overhead", "max-autotune")  # these make CUDA graphs themselves
        self.graphs = Graphs(on=cfg.cuda.graphs and device.type == "cuda" and not own)
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
            world=world,
            compiler=self.compiler,
            graphs=self.graphs,
        )
        terms = Terms(
            cfg.reward, cfg.ppo.gamma, cfg.episode_epochs, data.chance, host_parameters,
            self.lifecycle.min_training_epochs,
        )  # fmt: skip
        self.reward = Reward(terms, n, slots, device, self.compiler)
        self.gae = self.compiler.wrap("GAE", gae, loops=True)
        self.governor = Governor(self.population, data.perplexity)
        self.rollout = Rollout(cfg.episode_epochs, n, slots, device)
        self.signals = Signals.unmeasured(n, slots, device)
        self.decision: Decision | None = None
        self.round = 0
        self.epoch = 0

    def run(self, observer: Watcher) -> None:
        """Train round after round for as long as the observer wants another."""
        while self.epoch > 0 or observer.wants_round(self.round):
            self.play(observer)
            self.learn(observer)

    def play(self, observer: Watcher) -> None:
        """One episode of all envs, from wherever it stands."""
        if self.epoch == 0:
            self.begin_episode(observer)
        while self.epoch < self.cfg.episode_epochs:
            observer.epoch_begins(self.epoch, self.cfg.episode_epochs)
            with observer.phase("train"):
                self.signals = self.population.run_epoch(self.round, self.epoch, layers=observer.layer_envs)
            observer.trained(self.population.seconds)
            with observer.phase("reward"):
                verdict = self.governor.judge(self.signals, self.epoch + 1)
                rolled_back = verdict["governor.ill"] > 0
                self.agent.reset_hidden(rolled_back)
                components = self.reward(self.table, self.signals, self.epoch, rolled_back)
                reward_N = total(components)
                assert self.decision is not None
                self.rollout.store(self.epoch, self.decision, reward_N)
            self.epoch += 1
            layers = self.population.layer_statistics
            columns = verdict | outcome_columns(
                signals=self.signals,
                reward=reward_N,
                components=components,
                layers=vars(layers) if layers else None,
            )
            if self.epoch < self.cfg.episode_epochs:
                columns |= self.decide(observer)
            self.see(columns, observer, layers.names if layers else ())
            observer.epoch_finished(self)

    def begin_episode(self, observer: Watcher) -> None:
        """N fresh hosts, and the first decision about them."""
        self.round += 1
        observer.round_begins(self.round)
        self.population.begin_episode(self.round)
        self.agent.begin_episode(self.round)
        self.reward.begin_episode()
        self.governor.begin_episode()
        self.signals = Signals.unmeasured(*self.table.shape, self.table.stage.device)
        self.see(self.decide(observer), observer)

    def decide(self, observer: Watcher) -> dict[str, Tensor]:
        """Seeds move on by themselves, then the policy acts; the columns tell what came of it."""
        with observer.phase("decide"):
            before = self.table.stage.clone()
            self.lifecycle.advance(self.table, self.signals)
            advanced = self.table.stage.clone()
            legal = self.lifecycle.legal(self.table, self.signals)
            gates = self.lifecycle.gates(self.table, self.signals)
            self.decision = self.agent.act(self.table, self.signals, legal, self.epoch)
        with observer.phase("act"):
            actions = self.decision.actions
            executed = self.lifecycle.apply(self.table, actions, legal, self.signals)
            self.agent.acted(self.decision, executed)
        columns = decision_columns(
            stage_before=before, stage_advanced=advanced, table=self.table, actions=actions, gates=gates
        )
        return columns | {"style": self.table.style, "contribution_age": self.table.contribution_age}

    def see(self, columns: dict[str, Tensor], observer: Watcher, layers: Sequence[str] = ()) -> None:
        """The one transfer of an epoch: telemetry, and which seeds live where in the coming one."""
        frame = observer.see(columns, layers)
        if "stage" in frame:
            self.population.prepare(*(frame[name] for name in TOPOLOGY))

    def learn(self, observer: Watcher) -> None:
        """One PPO update over the round's rollout."""
        update = None
        if self.agent.ppo is not None:
            with observer.phase("update"):
                ppo = self.cfg.ppo
                rollout = self.rollout.of_all(self.world)
                advantage, returns = self.gae(
                    rollout.reward, rollout.value, gamma=ppo.gamma, lam=ppo.gae_lambda
                )
                update = self.agent.ppo.update(rollout, advantage, returns)
        with observer.phase("test"):
            columns = {"test_accuracy": self.population.test()[1].cpu().numpy()}
        every = self.cfg.validation.shapley_every
        if every and self.round % every == 0:
            with observer.phase("shapley"):
                columns |= shapley_columns(self.population.shapley(self.round))
        self.epoch = 0
        observer.round_finished(self, update, columns)

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
            "signals": {f.name: getattr(self.signals, f.name) for f in fields(self.signals)},
            "decision": decision,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` of a run with the same configuration."""
        device = self.table.stage.device
        self.round, self.epoch = state["round"], state["epoch"]
        self.population.load_state_dict(state["population"])
        self.agent.load_state_dict(state["agent"])
        self.reward.load_state_dict(state["reward"])
        self.governor.load_state_dict(state["governor"])
        self.rollout.load_state_dict(state["rollout"])
        self.signals = Signals(**{k: v.to(device) for k, v in state["signals"].items()})
        if state["decision"] is not None:
            parts = dict(state["decision"])
            seen = Observation(**{k: v.to(device) for k, v in parts.pop("observation").items()})
            self.decision = Decision(observation=seen, **{k: v.to(device) for k, v in parts.items()})
        if self.epoch > 0:
            self.population.prepare(*(getattr(self.table, name).cpu().numpy() for name in TOPOLOGY))


def _share(cfg: Config, world: World) -> Config:
    """The configuration with this rank's number of envs."""
    return replace(cfg, envs=replace(cfg.envs, count=len(world.rows(cfg.envs.count))))
