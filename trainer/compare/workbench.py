"""Shared resources of a comparison's cells: the task, the hosts, the networks; made when first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from esper_overwatch.trainer.compare.schedule_values import all_schedules
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.evaluation.episodes import HeldOutEpisodes
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts
from esper_overwatch.trainer.hosts.task_defaults import build_model
from esper_overwatch.trainer.policy.actions import ActionSpace
from esper_overwatch.trainer.policy.baselines import NO_SEED
from esper_overwatch.trainer.policy.network import ActorCritic
from esper_overwatch.trainer.policy.observation import Observation
from esper_overwatch.trainer.policy.saved_policy import SavedPolicy

from .frozen_policies import ScheduledPolicy
from .searches import Choose, Records


@dataclass(frozen=True)
class TrainingHosts(HeldOutHosts):
    """Hosts and instances as a training run has them, with the tasks dealt out in turn; for searches."""

    def configure(self, cfg: Config, count: int | None = None) -> Config:
        """A run's configuration, for these hosts in place of its own; `count`: of this rank."""
        return replace(cfg, seed=self.seed, envs=replace(cfg.envs, count=count or self.count, copies=1))

    def _instances(self, task: TaskConfig, tasks: int) -> tuple[int, int]:  # noqa: ARG002
        """The instances that training draws from."""
        return task.instances, 0


class SearchEpisodes(HeldOutEpisodes):
    """As `HeldOutEpisodes`: any hosts, as many of them at once as there are envs."""

    def play_schedules(self, hosts: range, choose: Choose, schedule_KS: Tensor, epoch: int = 0) -> Records:
        """An episode of each of these hosts, whose schedules are chosen at an epoch.

        Args:
            hosts: numbers from 0, at most as many as there are envs.
        """
        spare = len(self) - len(hosts)
        self._population.assign_envs(torch.tensor([*hosts, *[hosts[-1]] * spare]))
        found: Records = {}

        def plant(seen: Observation) -> Tensor:
            found["context"] = seen.host_features()[: len(hosts)]
            found["chosen"] = choose(found["context"])
            return schedule_KS[torch.cat([found["chosen"], found["chosen"][-1:].expand(spare)])]

        table = self.play(ScheduledPolicy.by(plant, epoch))
        return found | {"paid": torch.from_numpy(table.episode_return[: len(hosts)])}

    def __len__(self) -> int:
        return self.cfg.envs.count


class Workbench:
    """See the module.

    Args:
        cfg: of all cells.
        data: what policies are trained on.
        held_out: hosts that policies are played on.
    """

    def __init__(self, cfg: Config, data: Task, held_out: HeldOutHosts, device: torch.device) -> None:
        self.cfg, self.data, self.held_out, self.device = cfg, data, held_out, device
        self._search: tuple[TrainingHosts, SearchEpisodes] | None = None

    @property
    def trained_tasks(self) -> tuple[str, ...]:
        """Tasks that policies are trained on."""
        return self.cfg.task.mixture or (self.cfg.task.label,)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that they are played on."""
        return self.held_out.tasks or self.trained_tasks

    def task_of_host(self, host: int) -> str:
        """Task of a held-out host."""
        return self.tasks[host % len(self.tasks)]

    @cached_property
    def held_out_data(self) -> Task:
        return self.held_out.load(self.cfg.task, self.device)

    @cached_property
    def slots(self) -> int:
        """S."""
        _, pool = build_model(self.cfg, self.held_out_data)
        return len(pool.slots)

    @cached_property
    def host_parameters(self) -> int:
        """Parameters of a host without seeds."""
        model, _ = build_model(self.cfg, self.held_out_data)
        return sum(spec.count for spec in model.specs().values())

    @cached_property
    def held_out_episodes(self) -> HeldOutEpisodes:
        return HeldOutEpisodes(self.cfg, self.held_out_data, self.held_out, self.device)

    def search_episodes(self, seed: int, tasks: Sequence[str]) -> SearchEpisodes:
        """Hosts that learn these tasks, with the instances of training; as many at once as in training.

        Args:
            seed: of the hosts.
        """
        alone = tuple(tasks) == (self.cfg.task.label,) and not self.cfg.task.mixture
        hosts = TrainingHosts(seed, self.cfg.envs.count, () if alone else tuple(tasks))
        if self._search is None or self._search[0] != hosts:
            self._close_search()
            data = hosts.load(self.cfg.task, self.device)
            self._search = hosts, SearchEpisodes(self.cfg, data, hosts, self.device)
        return self._search[1]

    def schedules(self) -> Tensor:
        """int64 [K, S], see `schedule_values.all_schedules`.

        Raises:
            ConfigError: there are too many.
        """
        return all_schedules(self.slots, len(self.cfg.seeds.blueprints), "--policy constant, oracle")

    def label(self, plants: Sequence[int]) -> str:
        """Words for a schedule, as `depthwise 0, conv_light 1`."""
        kinds = self.cfg.seeds.blueprints
        return ", ".join(f"{kinds[k]} {slot}" for slot, k in enumerate(plants) if k != NO_SEED) or "nothing"

    def network(self, weights: Mapping[str, Tensor]) -> FrozenPolicy:
        """A policy of a training with these weights."""
        network = self._untrained(self.cfg)
        network.load_state_dict(weights)
        return FrozenPolicy.learned(network)

    def saved_policy(self, path: Path) -> FrozenPolicy:
        """The policy of a file, which decides when it did in its own run.

        Raises:
            PolicyMismatch: it cannot be read, or does not fit the slots or blueprints here.
        """
        saved = SavedPolicy.read(path)
        options = saved.about.policy
        epochs = tuple(options.get("decision_epochs", ()))
        policy = replace(self.cfg.policy, hidden=int(options["hidden"]), decision_epochs=epochs)
        cfg = replace(self.cfg, policy=policy)
        network = self._untrained(cfg)
        saved.load_into(network, cfg, self.slots)
        return FrozenPolicy("ppo", network, decision_epochs=epochs)

    def _untrained(self, cfg: Config) -> ActorCritic:
        space = ActionSpace(self.slots, len(cfg.seeds.blueprints), self.device)
        plans = bool(cfg.policy.decision_epochs)
        return ActorCritic(space, cfg.policy.hidden, cfg.seed, plans=plans).to(self.device)

    def close(self) -> None:
        """End the worker threads."""
        self._close_search()
        if "held_out_episodes" in vars(self):
            self.held_out_episodes.close()

    def _close_search(self) -> None:
        if self._search is not None:
            self._search[1].close()
            self._search = None
