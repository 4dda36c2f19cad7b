"""Worth of each schedule in each task, as far as it was tried: a Gaussian process over schedules.

Schedules that plant the same in a slot are worth alike: the covariance of two has, beside that of their
task's mean, a product over the slots of 1 where they plant the same and `LIKENESS` where they do not. So a
hundred schedules are judged by some dozens of episodes. What is tried next has the highest upper confidence
bound (GP-UCB: Srinivas et al., "Gaussian process optimization in the bandit setting", 2010,
arXiv:0912.3995); envs that choose at the same time count what the others are about to try (GP-BUCB: Desautels
et al., "Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit optimization", 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import torch
from torch import Tensor

from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.policy.baselines import NO_SEED

MAX_SCHEDULES = 4096
"""Limit of the Gaussian process: for each task it has a float64 covariance of all pairs, here 128 MiB."""
LIKENESS = 0.5
LEVEL_DEVIATION, SCHEDULE_DEVIATION = 1.0, 0.3
"""Prior standard deviations of a task's mean, and of schedules around it, for returns of about 1, as those of
accuracies are. Where weights of the reward make them ten times as large or as small, the search is worse."""
NOISE_DEVIATION = 0.1
"""Deviation of the returns of hosts that follow the same schedule; some tasks have more, most have less."""
BOUND_DEVIATIONS = 2.0
"""Posterior standard deviations by which the upper bound of a schedule lies above its mean."""


def all_schedules(slots: int, blueprints: int, asked_by: str) -> Tensor:
    """int64 [K, S]: every choice of a blueprint or `NO_SEED` for every slot, the empty one first.

    Args:
        asked_by: the option that needs them, for the error.

    Raises:
        ConfigError: there are more than `MAX_SCHEDULES`.
    """
    if (count := (blueprints + 1) ** slots) > MAX_SCHEDULES:
        raise ConfigError(
            f"{asked_by}: {blueprints} blueprints in {slots} slots make {count} schedules, more than "
            f"{MAX_SCHEDULES}; name fewer seeds.blueprints"
        )
    return torch.tensor(list(product(range(NO_SEED, blueprints), repeat=slots)))


def prior_covariance(schedule_KS: Tensor) -> Tensor:
    """float64 [K, K], of the returns of schedules in one task before anything was tried."""
    same_KKS = schedule_KS.unsqueeze(0) == schedule_KS.unsqueeze(1)
    alike_KK = torch.where(same_KKS, 1.0, LIKENESS).double().prod(-1)
    return LEVEL_DEVIATION**2 + SCHEDULE_DEVIATION**2 * alike_KK


class ScheduleValues:
    """Posterior means and covariances, float64.

    Args:
        tasks: how many.
        schedule_KS: int64, by schedule and slot what it plants.

    Attributes:
        mean_GK: what each schedule is worth in each task.
        tried_GK: how often it was tried there.
    """

    def __init__(self, tasks: int, schedule_KS: Tensor) -> None:
        self._covariance_GKK = prior_covariance(schedule_KS).repeat(tasks, 1, 1)
        self.mean_GK = torch.zeros(tasks, len(schedule_KS), dtype=torch.float64)
        self.tried_GK = torch.zeros(tasks, len(schedule_KS), dtype=torch.int64)

    def observe(self, task: int, schedule: int, paid: float) -> None:
        """An episode with this schedule has earned `paid`."""
        covariance_KK = self._covariance_GKK[task]
        row_K = covariance_KK[schedule].clone()
        gain_K = row_K / (row_K[schedule] + NOISE_DEVIATION**2)
        self.mean_GK[task] += gain_K * (paid - self.mean_GK[task, schedule])
        covariance_KK -= torch.outer(gain_K, row_K)
        self.tried_GK[task, schedule] += 1

    def most_promising(self, task_N: Tensor) -> Tensor:
        """int64 [N]: for each env the schedule with the highest upper bound in its task."""
        return self._choose([task] for task in task_N.tolist())

    def most_promising_on_average(self, count: int) -> Tensor:
        """int64 [count]: schedules with the highest upper bound of the mean over all tasks, which are to be
        tried in each of them."""
        every = range(len(self.mean_GK))
        return self._choose(every for _ in range(count))

    def _choose(self, choices: Iterable[Sequence[int]]) -> Tensor:
        """A schedule for each choice, to be tried once in each of its tasks."""
        pending_GKK = self._covariance_GKK.clone()
        variance_GK = pending_GKK.diagonal(dim1=1, dim2=2)  # a view, which follows
        chosen = []
        for tasks in choices:
            places = list(tasks)
            deviation_K = variance_GK[places].clamp_min(0.0).sum(0).sqrt() / len(places)
            best = int((self.mean_GK[places].mean(0) + BOUND_DEVIATIONS * deviation_K).argmax())
            for task in places:
                row_K = pending_GKK[task, best].clone()
                pending_GKK[task] -= torch.outer(row_K, row_K) / (row_K[best] + NOISE_DEVIATION**2)
            chosen.append(best)
        return torch.tensor(chosen, dtype=torch.int64)
