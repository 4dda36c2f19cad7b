"""Worth of each schedule in each task, as far as it was tried: a Gaussian process over schedules.

Schedules that plant the same in a slot are worth alike: the covariance of two has, beside that of their
task's mean, a product over the slots of 1 where they plant the same and `LIKENESS` where they do not. So a
hundred schedules are judged by some dozens of episodes. What is tried next has the highest upper confidence
bound (GP-UCB: Srinivas et al., "Gaussian process optimization in the bandit setting", 2010,
arXiv:0912.3995); envs that choose at the same time count what the others are about to try (GP-BUCB: Desautels
et al., "Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit optimization", 2014).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIKENESS = 0.5
LEVEL_DEVIATION, SCHEDULE_DEVIATION = 1.0, 0.3
"""Prior standard deviations of a task's mean, and of schedules around it, for returns of about 1, as those of
accuracies are. Where weights of the reward make them ten times as large or as small, the search is worse."""
NOISE_DEVIATION = 0.1
"""Deviation of the returns of hosts that follow the same schedule; some tasks have more, most have less."""
BOUND_DEVIATIONS = 2.0
"""Posterior standard deviations by which the upper bound of a schedule lies above its mean."""


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
        same_KKS = schedule_KS.unsqueeze(0) == schedule_KS.unsqueeze(1)
        alike_KK = torch.where(same_KKS, 1.0, LIKENESS).double().prod(-1)
        prior_KK = LEVEL_DEVIATION**2 + SCHEDULE_DEVIATION**2 * alike_KK
        self._covariance_GKK = prior_KK.repeat(tasks, 1, 1)
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
        pending_GKK = self._covariance_GKK.clone()
        chosen = []
        for task in task_N.tolist():
            covariance_KK = pending_GKK[task]
            deviation_K = covariance_KK.diagonal().clamp_min(0.0).sqrt()
            best = int((self.mean_GK[task] + BOUND_DEVIATIONS * deviation_K).argmax())
            row_K = covariance_KK[best].clone()
            covariance_KK -= torch.outer(row_K, row_K) / (row_K[best] + NOISE_DEVIATION**2)
            chosen.append(best)
        return torch.tensor(chosen, dtype=torch.int64)
