"""Hosts on which many plans are searched at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.registry import load_mixture, load_task
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.evaluation.episodes import HeldOutEpisodes
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts, HeldOutMixture

from .frozen_policies import PlanPolicy
from .plans import Plan


@dataclass(frozen=True)
class TrainingHosts(HeldOutHosts):
    """Hosts and instances as a training run has them, with the tasks dealt out in turn; for searches."""

    def configure(self, cfg: Config, count: int | None = None) -> Config:
        """A run's configuration, for these hosts in place of its own; `count`: of this rank."""
        return replace(cfg, seed=self.seed, envs=replace(cfg.envs, count=count or self.count))

    def load(self, task: TaskConfig, device: torch.device) -> Task:
        """Load their data: the instances that training draws from.

        Raises:
            DataError: as `registry.load_task`.
        """
        names = self.tasks or task.mixture
        if not names:
            return load_task(task, device)
        return load_mixture(names, task.instances, 0, HeldOutMixture).to(device)


class SearchEpisodes(HeldOutEpisodes):
    """As `HeldOutEpisodes`: any plan on any host, as many of these pairs at once as there are envs."""

    def play_plans(self, plans: Sequence[Plan], hosts: Sequence[int]) -> list[float]:
        """Returns of plans, each on one host.

        Args:
            plans: at most as many as there are envs.
            hosts: of each plan, numbers from 0.
        """
        spare = len(self) - len(plans)
        self._population.assign_envs(torch.tensor([*hosts, *[hosts[-1]] * spare]))
        table = self.play(PlanPolicy.of([*plans, *[plans[-1]] * spare]))
        return [float(value) for value in table.episode_return[: len(plans)]]

    def __len__(self) -> int:
        return self.cfg.envs.count
