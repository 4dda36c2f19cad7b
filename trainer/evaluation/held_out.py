"""Hosts that policies are compared on: their seeds and task instances are never those of a training run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.registry import load_mixture, load_task
from esper_overwatch.trainer.data.task import Task

FIRST_SEED = 1 << 32
"""Added to the seed of held-out hosts: beyond every seed that a run can have."""
FIRST_INSTANCE = 1 << 20
"""Seed of the first instance of a generated task for the hosts of seed 1: beyond `task.instances`."""
MAX_HOSTS = 4096
"""Limit of hosts, so that hosts of another seed have other instances."""


class HeldOutMixture(Mixture):
    """A mixture whose tasks are dealt out in turn, so that each has as many hosts as another."""

    def draw(self, seed: int, envs: Tensor, round_: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Places in `datasets`, the same in every round: int64 [n]."""
        counts = torch.tensor([len(task.datasets) for task in self.tasks])
        task = envs.remainder(len(self.tasks))
        places = (counts.cumsum(0) - counts)[task] + (envs // len(self.tasks)).remainder(counts[task])
        return places.numpy()


@dataclass(frozen=True)
class HeldOutHosts:
    """Selects hosts: equal selections are the same hosts, batch for batch, for every policy and every run.

    Attributes:
        seed: of the hosts, their batches and task instances, and the draws of policies that draw.
        count: N, at most `MAX_HOSTS`.
        tasks: dealt out in turn; empty = those of the run, `task.mixture` or else `task.dataset`.
    """

    seed: int = 1
    count: int = 40
    tasks: tuple[str, ...] = ()

    def configure(self, cfg: Config, count: int | None = None) -> Config:
        """Configure these hosts, or `count` of them, in place of the run's own."""
        envs = replace(cfg.envs, count=self.count if count is None else count, copies=1)
        return replace(cfg, seed=FIRST_SEED + self.seed, envs=envs)

    def load(self, task: TaskConfig, device: torch.device) -> Task:
        """Load their data. Generated tasks have an instance for each host; of others there is only one.

        Raises:
            DataError: as `registry.load_task`.
        """
        names = self.tasks or task.mixture
        if not names:
            return load_task(task, device)
        return load_mixture(names, *self._instances(task, len(names)), HeldOutMixture).to(device)

    def _instances(self, task: TaskConfig, tasks: int) -> tuple[int, int]:  # noqa: ARG002
        """Instances of each of `tasks` tasks, and the number of the first."""
        return -(-self.count // tasks), FIRST_INSTANCE + (self.seed - 1) * MAX_HOSTS
