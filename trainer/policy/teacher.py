"""A teacher: it finds the best constant schedule for each task, then follows it for the policy to imitate.

The trainer knows which task an env has drawn, the policy does not: it learns to do by what a host shows what
the teacher does by the task. In a run's first rounds each env follows a schedule, chosen among all by its
task's upper confidence bounds (UCB1: Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed
bandit problem", 2002); in the rounds after these, the one whose lower bound is the highest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from trainer.config.load import ConfigError
from trainer.config.schema import Config

from .baselines import NO_SEED, Rule, schedules

MAX_SCHEDULES = 4096
EXPLORATION = 0.1
"""Width of the confidence bounds, in units of the return: mean +- this sqrt(ln n / n_k)."""

_log = logging.getLogger(__name__)


class Teacher:
    """What the envs of all ranks follow in a run's first rounds; every rank has the same.

    Args:
        cfg: of the run.
        slots: S.

    Attributes:
        rounds: how many it takes.

    Raises:
        ConfigError: slots and blueprints make too many schedules.
    """

    def __init__(self, cfg: Config, slots: int) -> None:
        options, blueprints = cfg.teacher, cfg.seeds.blueprints
        if (count := (len(blueprints) + 1) ** slots) > MAX_SCHEDULES:
            raise ConfigError(
                f"teacher.search_rounds = {options.search_rounds}: {len(blueprints)} blueprints in {slots} "
                f"slots make {count} schedules, more than {MAX_SCHEDULES}; name fewer seeds.blueprints"
            )
        self.rounds = options.search_rounds + options.demonstration_rounds
        self._options = options
        self._start = max(0.0, (options.plant_epoch - 0.5) / cfg.episode_epochs)
        self._tasks: Sequence[str] = cfg.task.mixture or (cfg.task.label,)
        self._blueprints = blueprints
        self._schedules = torch.tensor(list(product(range(NO_SEED, len(blueprints)), repeat=slots)))
        self._plays = torch.zeros(len(self._tasks), count, dtype=torch.float64)
        self._paid = torch.zeros_like(self._plays)
        self._task_N = self._chosen_N = torch.zeros(0, dtype=torch.int64)

    def searches(self, round: int) -> bool:
        """Whether the envs of a round follow schedules that are still to be judged."""
        return round <= self._options.search_rounds

    def learning_rate(self, round: int) -> float:
        """Of the imitation after a round of demonstrations."""
        done = (round - self._options.search_rounds - 1) / self._options.demonstration_rounds
        return self._options.learning_rate * (1.0 - done)

    def assign(self, round: int, task_N: Tensor | None) -> None:
        """Choose the schedules that the envs of all ranks follow in a round.

        Args:
            task_N: int64, the task of each, by its place in the mixture; None = there is one task.
        """
        assert task_N is not None
        self._task_N = task_N.cpu()
        if not self.searches(round):
            self._chosen_N = self.best()[self._task_N]
            return
        plays, chosen = self._plays.clone(), []
        for task in self._task_N.tolist():
            chosen.append(self._most_promising(task, plays[task]))
            plays[task, chosen[-1]] += 1
        self._chosen_N = torch.tensor(chosen)

    def _most_promising(self, task: int, plays: Tensor) -> int:
        """The schedule with the highest upper bound; before that the first that is not played yet.

        Args:
            plays: [schedules] of the task, those of this round too.
        """
        upper = self._mean()[task] + EXPLORATION * (plays.sum().log() / plays).sqrt()
        return int(upper.nan_to_num(torch.inf).argmax())

    def _mean(self) -> Tensor:
        """[tasks, schedules], mean return of what was played; 0 where nothing was."""
        return self._paid / self._plays.clamp_min(1)

    def best(self) -> Tensor:
        """int64 [tasks], the schedule with the highest lower bound for each."""
        lower = self._mean() - EXPLORATION * (self._plays.sum(1, keepdim=True).log() / self._plays).sqrt()
        return lower.where(self._plays > 0, -torch.inf).argmax(1)

    def rule(self, rows: range, device: torch.device) -> Rule:
        """What the envs `rows` of all ranks' follow in the round that was assigned."""
        plant_NS = self._schedules[self._chosen_N[rows.start : rows.stop]].to(device)
        return schedules(plant_NS, self._start)

    def judge(self, return_N: Tensor) -> None:
        """Learn from the returns of all ranks' envs in a round of the search."""
        where = self._task_N, self._chosen_N
        self._plays.index_put_(where, torch.ones(len(return_N), dtype=torch.float64), accumulate=True)
        self._paid.index_put_(where, return_N.cpu().double(), accumulate=True)

    def log_findings(self) -> None:
        """Log the schedule found for each task."""
        for task, (name, best) in enumerate(zip(self._tasks, self.best().tolist(), strict=True)):
            plants = [
                f"{self._blueprints[kind]} in slot {slot}"
                for slot, kind in enumerate(self._schedules[best].tolist())
                if kind != NO_SEED
            ]
            _log.info(
                "teacher: %s: %s; return %.3f in %d episodes",
                name,
                ", ".join(plants) or "no seed",
                self._mean()[task, best],
                self._plays[task, best],
            )

    def state_dict(self) -> dict[str, Any]:
        """What was found so far, and what the envs follow now."""
        return {"plays": self._plays, "paid": self._paid, "task": self._task_N, "chosen": self._chosen_N}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._plays, self._paid = state["plays"].cpu(), state["paid"].cpu()
        self._task_N, self._chosen_N = state["task"].cpu(), state["chosen"].cpu()
