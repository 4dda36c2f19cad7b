"""A teacher: it finds out what to plant in hosts that look alike, then shows it to the policy.

The teacher waits until hosts have shown something of what they learn; then it plants in each a schedule, for
every slot a blueprint or none. Its rounds have three stages:

1. Envs are grouped by their task, which the trainer knows and the policy is not told. For each group,
   schedules are chosen by upper confidence bounds (UCB1: Auer, Cesa-Bianchi and Fischer, "Finite-time
   analysis of the multiarmed bandit problem", 2002).
2. Envs are grouped by what they look like: the task that a logistic regression, fitted to the first stage,
   takes theirs for. So a schedule is judged by all hosts that the policy might take for each other, and
   nothing that the policy cannot see decides.
3. Each group follows the schedule whose lower bound is the highest, and the policy imitates.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from trainer.config.load import ConfigError
from trainer.config.schema import Config

from .baselines import NO_SEED
from .observation import BASE_COLUMNS

MAX_SCHEDULES = 4096
EXPLORATION = 0.1
"""Width of the confidence bounds, in units of the return: mean +- this sqrt(ln n / n_k)."""
INVERSE_PENALTY = 0.3
"""C of scikit-learn's `LogisticRegression`."""
_SHOWN = [i for i, name in enumerate(BASE_COLUMNS.measured) if not name.endswith("_ago")]
"""Columns that the groups are told by; those of the epochs before have been seen then."""
_RECORDS = ("shown", "task", "group", "chosen", "paid")

_log = logging.getLogger(__name__)

Looks = Callable[[Tensor], Tensor]
"""From what hosts have shown [n, features] to the tasks int64 [n] that they look like."""


class Teacher:
    """What the envs of all ranks do in a run's first rounds; every rank has the same.

    Args:
        cfg: of the run.
        slots: S.

    Attributes:
        rounds: how many it takes.
        plant_epoch: from 0; nothing is planted before it.

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
        self.plant_epoch = options.plant_epoch
        self._options = options
        self._tasks: Sequence[str] = cfg.task.mixture or (cfg.task.label,)
        self._blueprints = blueprints
        self._schedules = torch.tensor(list(product(range(NO_SEED, len(blueprints)), repeat=slots)))
        whole = torch.zeros(0, dtype=torch.int64)
        features = torch.zeros(0, (options.plant_epoch + 1) * len(_SHOWN))
        self._records = dict(zip(_RECORDS, (features, whole, whole, whole, torch.zeros(0)), strict=True))
        self._now = {name: self._records[name] for name in _RECORDS[:-1]}
        self._looks: Looks | None = None

    def searches(self, round: int) -> bool:
        """Whether the envs of a round follow schedules that are still to be judged."""
        return round <= self._options.search_rounds

    def learning_rate(self, round: int) -> float:
        """Of the imitation after a round of demonstrations."""
        done = (round - self._options.search_rounds - 1) / self._options.demonstration_rounds
        return self._options.learning_rate * (1.0 - done)

    def assign(self, round: int, task_N: Tensor, seen_TN: Tensor) -> None:
        """Choose the schedules that the envs of all ranks follow in a round.

        Args:
            task_N: int64, by its place in the mixture.
            seen_TN: base columns of the observations up to `plant_epoch`.
        """
        shown = seen_TN[..., _SHOWN].nan_to_num(0.0).transpose(0, 1).flatten(1).cpu()
        task = task_N.cpu()
        group = task if self._looks is None else self._looks(shown)
        chosen = self._most_promising(group) if self.searches(round) else self.best()[group]
        self._now = {"shown": shown, "task": task, "group": group, "chosen": chosen}

    def _most_promising(self, group_N: Tensor) -> Tensor:
        """For each env the schedule with the highest upper bound; before that the first untried one."""
        plays, mean = self._judged()
        chosen = []
        for group in group_N.tolist():
            tried = plays[group]
            upper = mean[group] + EXPLORATION * (tried.sum().log() / tried).sqrt()
            chosen.append(int(upper.nan_to_num(torch.inf).argmax()))
            tried[chosen[-1]] += 1
        return torch.tensor(chosen)

    def _judged(self) -> tuple[Tensor, Tensor]:
        """float64 [groups, schedules]: how often they were played, and the mean return, 0 of none."""
        plays = torch.zeros(len(self._tasks), len(self._schedules), dtype=torch.float64)
        paid, where = torch.zeros_like(plays), (self._records["group"], self._records["chosen"])
        returns = self._records["paid"].double()
        plays.index_put_(where, torch.ones_like(returns), accumulate=True)
        paid.index_put_(where, returns, accumulate=True)
        return plays, paid / plays.clamp_min(1)

    def best(self) -> Tensor:
        """int64 [groups], the schedule with the highest lower bound for each."""
        plays, mean = self._judged()
        lower = mean - EXPLORATION * (plays.sum(1, keepdim=True).log() / plays).sqrt()
        return lower.where(plays > 0, -torch.inf).argmax(1)

    def plants(self, rows: range, epoch: int, device: torch.device) -> Tensor:
        """int64 [rows, S]: what the envs `rows` of all ranks' are to hold, see `baselines.schedules`."""
        plants = self._schedules[self._now["chosen"][rows.start : rows.stop]]
        if epoch < self.plant_epoch:
            plants = torch.full((len(rows), self._schedules.shape[1]), NO_SEED)
        return plants.to(device)

    def judge(self, round: int, return_N: Tensor) -> None:
        """Learn from the returns of all ranks' envs in a round of the search."""
        now = self._now | {"paid": return_N.cpu()}
        self._records = {name: torch.cat([self._records[name], now[name]]) for name in _RECORDS}
        if round == self._options.search_rounds // 2:
            self._learn_looks()

    def _learn_looks(self) -> None:
        """Group hosts by what they look like from now on, and those judged before by what they did.

        These are told apart by regressions that were not fitted to them, as those to come will be.
        """
        shown, task = self._records["shown"], self._records["task"]
        half = torch.arange(len(task)) % 2 == 0
        group = task.clone()
        for fitted in (half, ~half):
            group[~fitted] = _learn_looks(shown[fitted], task[fitted])(shown[~fitted])
        self._records["group"] = group
        self._looks = _learn_looks(shown, task)

    def log_findings(self) -> None:
        """Log the schedule found for each group."""
        plays, mean = self._judged()
        for group, (name, best) in enumerate(zip(self._tasks, self.best().tolist(), strict=True)):
            plants = [
                f"{self._blueprints[kind]} in slot {slot}"
                for slot, kind in enumerate(self._schedules[best].tolist())
                if kind != NO_SEED
            ]
            _log.info(
                "teacher: hosts that look like %s: %s; mean return %.3f in %d of %d episodes",
                name,
                ", ".join(plants) or "no seed",
                mean[group, best],
                plays[group, best],
                plays[group].sum(),
            )

    def state_dict(self) -> dict[str, Any]:
        """What was found so far, and what the envs do now."""
        return {"records": self._records, "now": self._now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._records = {name: state["records"][name].cpu() for name in _RECORDS}
        self._now = {name: value.cpu() for name, value in state["now"].items()}
        fitted = len(self._now["task"]) * (self._options.search_rounds // 2)
        if 0 < fitted <= len(self._records["task"]):
            self._looks = _learn_looks(self._records["shown"][:fitted], self._records["task"][:fitted])


def _learn_looks(shown: Tensor, task: Tensor) -> Looks:
    """Fit a logistic regression to hosts whose task is known."""
    from sklearn.exceptions import ConvergenceWarning  # takes a second that only this needs
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tasks = set(task.tolist())
    if len(tasks) < 2:
        return lambda seen: torch.full((len(seen),), max(tasks, default=0))
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=3000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rough regression groups as well
        regression.fit(shown.double().numpy(), task.numpy())
    return lambda seen: torch.from_numpy(regression.predict(seen.double().numpy()))
