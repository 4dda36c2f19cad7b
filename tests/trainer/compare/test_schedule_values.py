"""Values of schedules: the posterior is that of a Gaussian process, and the search finds what is best."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.compare import schedule_values as values
from esper_overwatch.trainer.compare.schedule_values import ScheduleValues, all_schedules
from esper_overwatch.trainer.config.load import ConfigError

SCHEDULES = all_schedules(3, 3, "")


def posterior(tried: list[tuple[int, float]]) -> tuple[Tensor, Tensor]:
    """Mean and covariance in closed form (Rasmussen and Williams, "Gaussian Processes", 2006, eq. 2.23)."""
    alike = torch.ones(len(SCHEDULES), len(SCHEDULES), dtype=torch.float64)
    for one, other in product(range(len(SCHEDULES)), repeat=2):
        unlike = int((SCHEDULES[one] != SCHEDULES[other]).sum())
        alike[one, other] = values.LIKENESS**unlike
    prior = values.LEVEL_DEVIATION**2 + values.SCHEDULE_DEVIATION**2 * alike
    rows = torch.tensor([k for k, _ in tried])
    paid = torch.tensor([p for _, p in tried], dtype=torch.float64)
    noise = values.NOISE_DEVIATION**2 * torch.eye(len(rows), dtype=torch.float64)
    gain = prior[:, rows] @ (prior[rows][:, rows] + noise).inverse()
    return gain @ paid, prior - gain @ prior[rows]


def test_too_many_schedules_are_refused() -> None:
    assert len(all_schedules(3, 4, "")) == 125
    with pytest.raises(ConfigError, match=r"--policy oracle: 16 blueprints in 5 slots make .* name fewer"):
        all_schedules(5, 16, "--policy oracle")


def test_posterior_equals_the_closed_form() -> None:
    tried = [(5, 0.3), (17, 0.9), (5, 0.5), (60, -0.2), (16, 0.7)]
    worth = ScheduleValues(2, SCHEDULES)
    for schedule, paid in tried:
        worth.observe(1, schedule, paid)
    mean, covariance = posterior(tried)
    torch.testing.assert_close(worth.mean_GK[1], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(worth._covariance_GKK[1], covariance, rtol=1e-9, atol=1e-9)
    assert not worth.mean_GK[0].any()
    assert worth.tried_GK.sum(1).tolist() == [0, 5]


def test_envs_that_choose_together_try_different_schedules() -> None:
    worth = ScheduleValues(1, SCHEDULES)
    chosen = worth.most_promising(torch.zeros(20, dtype=torch.int64))
    assert len(set(chosen.tolist())) == 20
    assert not worth.tried_GK.any()


@pytest.mark.parametrize("seed", range(5))
def test_search_finds_a_schedule_within_noise_of_the_best(seed: int) -> None:
    """64 schedules, 80 episodes whose returns have a deviation of .1: what is found is .05 below at most."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    truth = parts[torch.arange(3), SCHEDULES + 1].mean(1)
    worth = ScheduleValues(1, SCHEDULES)
    for _ in range(10):
        for schedule in worth.most_promising(torch.zeros(8, dtype=torch.int64)).tolist():
            noise = 0.1 * float(torch.randn((), generator=generator))
            worth.observe(0, schedule, float(truth[schedule]) + noise)
    assert truth[worth.mean_GK[0].argmax()] >= truth.max() - 0.05


def test_schedules_for_all_tasks_are_judged_by_their_mean() -> None:
    worth = ScheduleValues(2, SCHEDULES)
    for _ in range(30):
        for task, paid in ((0, 1.0), (1, -1.0)):
            worth.observe(task, 5, paid)
            worth.observe(task, 60, 0.2)
    chosen = worth.most_promising_on_average(20)
    assert len(set(chosen.tolist())) == 20
    assert worth.mean_GK.mean(0)[60] > worth.mean_GK.mean(0)[5] + 0.1
    assert worth.most_promising(torch.tensor([0])) != worth.most_promising_on_average(1)
