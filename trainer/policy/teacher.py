"""A teacher: it finds out what to plant in which task, then shows the policy what to plant in which host.

A *schedule* is, for every slot, a blueprint or none. The teacher waits until some epochs of a host have been
measured, and then has it follow a schedule. Its rounds have two stages:

1. Search: the trainer knows each env's task, and what schedules are worth in it is learned by trying them
   (`schedule_values`).
2. Demonstration: a logistic regression of these measurements gives the probability of each task; the host
   follows the schedule that is worth most in the mean over these. So hosts are distinguished only by what
   the policy observes as well.

The policy imitates the demonstrations, and what the teacher would have done in the hosts of the search, up to
the first step in which they did something else.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esper_overwatch.trainer.config.schema import Config

from .actions import ActionSpace
from .baselines import NO_SEED, schedules
from .imitation import Lesson
from .observation import host_features
from .rollout import Rollout
from .schedule_values import ScheduleValues, all_schedules

INVERSE_PENALTY = 100.0
"""C of scikit-learn's `LogisticRegression`."""
_RECORDS = ("task", "chosen", "paid")

_log = logging.getLogger(__name__)


class TaughtChoice(NamedTuple):
    """How a teacher decides after its search, float64: by a logistic regression of the task, and by what
    schedules are worth in each."""

    weight_FG: Tensor
    bias_G: Tensor
    mean_GK: Tensor
    schedule_KS: Tensor

    def probable_tasks(self, shown_NF: Tensor) -> Tensor:
        """[N, G], by what hosts have shown, see `observation.host_features`."""
        return (shown_NF.double() @ self.weight_FG + self.bias_G).softmax(1)

    def worth_most(self, shown_NF: Tensor) -> Tensor:
        """int64 [N]: the schedule with the highest mean return over the tasks that a host may have."""
        return (self.probable_tasks(shown_NF) @ self.mean_GK).argmax(1)

    def plants(self, seen_TN: Tensor) -> Tensor:
        """int64 [N, S]: what to plant, by base columns of the observations up to the teacher's epoch."""
        return self.schedule_KS[self.worth_most(host_features(seen_TN))]


@dataclass(frozen=True)
class TeacherReport:
    """The teacher's knowledge after one of its rounds.

    Attributes:
        stage: "search" or "demonstration".
        rounds: how many are the teacher's.
        schedules: by task that was tried the blueprints of the best schedule, slot by slot; None = no seed.
        worth: by task that was tried the return that is expected of it.
        tried: by task the episodes of the search.
        recognised: share of the round's hosts whose most probable task was their own; None in a search.
        imitation_loss: nats per step, where the policy has imitated.
    """

    stage: str
    rounds: int
    schedules: dict[str, list[str | None]]
    worth: dict[str, float]
    tried: dict[str, int]
    recognised: float | None = None
    imitation_loss: float | None = None


class Teacher:
    """Directs the envs of all ranks in a run's first rounds; every rank has the same teacher.

    Attributes:
        rounds: how many it takes.
        plant_epoch: from 0; nothing is planted before it.

    Raises:
        ConfigError: slots and blueprints make too many schedules.
    """

    def __init__(self, cfg: Config, space: ActionSpace) -> None:
        options, blueprints, slots = cfg.teacher, cfg.seeds.blueprints, space.sizes[1]
        self.rounds = options.rounds
        self.plant_epoch = options.plant_epoch
        self._options, self._space, self._blueprints = options, space, blueprints
        self._tasks: Sequence[str] = cfg.task.mixture or (cfg.task.label,)
        asked_by = f"teacher.search_rounds = {options.search_rounds}"
        self._schedule_KS = all_schedules(slots, len(blueprints), asked_by)
        self._values = ScheduleValues(len(self._tasks), self._schedule_KS)
        none = torch.zeros(0, dtype=torch.int64)
        self._records = {"task": none, "chosen": none, "paid": torch.zeros(0)}
        self._now = {"task": none, "chosen": none}
        self._beginnings = Rollout.zeros(min(self.plant_epoch + slots + 1, cfg.episode_epochs), 0, slots)
        self._shown = Rollout.zeros(cfg.episode_epochs, 0, slots)
        self._choice: TaughtChoice | None = None
        self._recognised: float | None = None

    @property
    def chosen_N(self) -> Tensor:
        """int64, which schedule each env follows in this round."""
        return self._now["chosen"]

    def searches(self, round: int) -> bool:
        """True if the envs of a round follow schedules that are still to be judged."""
        return round <= self._options.search_rounds

    def assign(self, round: int, task_N: Tensor, seen_TN: Tensor) -> None:
        """Choose the schedules that the envs of all ranks follow in a round.

        Args:
            task_N: int64, by its place in the mixture.
            seen_TN: base columns of the observations up to `plant_epoch`.
        """
        task_N = task_N.cpu()
        if self.searches(round):
            chosen = self._values.most_promising(task_N)
        else:
            shown_NF = host_features(seen_TN)
            probable_N = self.choice.probable_tasks(shown_NF).argmax(1)
            self._recognised = float((probable_N == task_N).double().mean())
            chosen = self.choice.worth_most(shown_NF)
        self._now = {"task": task_N, "chosen": chosen}

    @property
    def choice(self) -> TaughtChoice:
        """How it decides from the end of its search on."""
        if self._choice is None:
            regression = _fit_regression(self._searched(), self._records["task"], len(self._tasks))
            self._choice = TaughtChoice(*regression, self._values.mean_GK, self._schedule_KS)
        return self._choice

    def _searched(self) -> Tensor:
        """Features of the search's hosts before anything was planted in them."""
        return host_features(self._beginnings.observation.base[: self.plant_epoch + 1])

    def plants(self, rows: range, epoch: int, device: torch.device) -> Tensor:
        """int64 [rows, S]: what the envs `rows` of all ranks' are to hold, see `baselines.schedules`."""
        chosen = self.chosen_N
        if epoch < self.plant_epoch:
            chosen = torch.zeros(rows.stop, dtype=torch.int64)
        return self._plants(chosen[rows.start : rows.stop], epoch).to(device)

    def _plants(self, chosen_N: Tensor, epoch: int) -> Tensor:
        """Plants at an epoch of envs that are to follow these schedules."""
        plant_NS = self._schedule_KS[chosen_N]
        return plant_NS if epoch >= self.plant_epoch else torch.full_like(plant_NS, NO_SEED)

    def record(self, round: int, rollout: Rollout) -> None:
        """Keep what the policy will imitate, and judge the schedules of a search.

        Args:
            rollout: of all ranks' envs.
        """
        rollout = rollout.to(torch.device("cpu"))
        if not self.searches(round):
            self._shown = Rollout.joined([self._shown, rollout])
            return
        new = self._now | {"paid": rollout.reward.sum(0)}
        self._records = {name: torch.cat([self._records[name], new[name]]) for name in _RECORDS}
        self._beginnings = Rollout.joined([self._beginnings, rollout.epochs(len(self._beginnings.reward))])
        self._observe(new)

    def _observe(self, new: dict[str, Tensor]) -> None:
        for row in zip(*(new[name].tolist() for name in _RECORDS), strict=True):
            self._values.observe(*row)

    def lessons(self, device: torch.device) -> list[Lesson]:
        """Lessons for the policy after the last demonstration; they are not kept."""
        chosen_N = self.choice.worth_most(self._searched())
        lessons = [
            Lesson.whole(self._shown.to(device)),
            self._as_taught(self._beginnings.to(device), chosen_N),
        ]
        none = torch.zeros(0, dtype=torch.int64)
        self._shown, self._beginnings = self._shown.envs(none), self._beginnings.envs(none)
        return lessons

    def _as_taught(self, rollout: Rollout, chosen_N: Tensor) -> Lesson:
        """The rollout relabelled by the teacher: the actions of hosts that follow these schedules.

        They are known as long as what was tried in a host is what the schedule would have done so far.
        """
        actions_TN = rollout.actions.clone()
        for epoch in range(len(actions_TN)):
            legal, seen = rollout.legal[epoch], rollout.observation.at(epoch)
            plant_NS = self._plants(chosen_N, epoch).to(legal.device)
            logits = schedules(plant_NS)(self._space, legal, 0, seen)
            even = torch.full(actions_TN.shape[1:], 0.5, device=legal.device)
            actions_TN[epoch] = self._space.sample(logits, legal, even)
        differs_TN = (actions_TN != rollout.actions).any(-1)
        is_imitated_TN = (differs_TN.cumsum(0) - differs_TN.long()) == 0
        return Lesson(rollout.with_actions(actions_TN), is_imitated_TN, is_whole=False)

    def report(self, round: int, imitation_loss: float | None = None) -> TeacherReport:
        """Report the teacher's knowledge after a round."""
        best = self._values.mean_GK.argmax(1).tolist()
        worth = self._values.mean_GK.amax(1).tolist()
        tried = self._values.tried_GK.sum(1).tolist()
        planted = [[self._name(kind) for kind in self._schedule_KS[k].tolist()] for k in best]
        searches = self.searches(round)
        return TeacherReport(
            stage="search" if searches else "demonstration",
            rounds=self.rounds,
            schedules={task: seeds for task, seeds, n in zip(self._tasks, planted, tried, strict=True) if n},
            worth={task: value for task, value, n in zip(self._tasks, worth, tried, strict=True) if n},
            tried=dict(zip(self._tasks, tried, strict=True)),
            recognised=None if searches else self._recognised,
            imitation_loss=imitation_loss,
        )

    def _name(self, kind: int) -> str | None:
        return None if kind == NO_SEED else self._blueprints[kind]

    def state_dict(self) -> dict[str, Any]:
        """Findings and demonstrations so far, and the envs' present schedules."""
        return {
            "records": self._records,
            "now": self._now,
            "recognised": self._recognised,
            "beginnings": self._beginnings.state_dict(),
            "shown": self._shown.state_dict(),
            "choice": self._choice and self._choice._asdict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._records = {name: state["records"][name].cpu() for name in _RECORDS}
        self._now = {name: value.cpu() for name, value in state["now"].items()}
        self._recognised = state["recognised"]
        self._beginnings, self._shown = (
            Rollout.of_state(state[name]).to(torch.device("cpu")) for name in ("beginnings", "shown")
        )
        choice = state.get("choice")
        self._choice = choice and TaughtChoice(**{name: value.cpu() for name, value in choice.items()})
        self._values = ScheduleValues(len(self._tasks), self._schedule_KS)
        self._observe(self._records)


def log_findings(report: TeacherReport) -> None:
    """Log the schedule found for each task."""
    for task, plants in report.schedules.items():
        seeds = [f"{kind} in slot {slot}" for slot, kind in enumerate(plants) if kind is not None]
        _log.info(
            "teacher: %s: %s; worth %.3f after %d episodes",
            task,
            ", ".join(seeds) or "no seed",
            report.worth[task],
            report.tried[task],
        )


def _fit_regression(shown_NF: Tensor, task_N: Tensor, tasks: int) -> tuple[Tensor, Tensor]:
    """Weights [F, G] and biases [G] of a logistic regression to hosts whose task is known; tasks that none of
    them has are never probable."""
    from sklearn.exceptions import ConvergenceWarning  # takes a second that only this needs
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known = sorted(set(task_N.tolist())) or [0]
    weight_FG = torch.zeros(shown_NF.shape[1], tasks, dtype=torch.float64)
    bias_G = torch.full((tasks,), -torch.inf, dtype=torch.float64)
    bias_G[known] = 0.0
    if len(known) < 2:
        return weight_FG, bias_G
    scaler, regression = StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=3000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nothing that whoever trains could do
        regression.fit(scaler.fit_transform(shown_NF.double().numpy()), task_N.numpy())
    own = known[-len(regression.coef_) :]  # of two tasks it has the second's weights, the first's are 0
    weight_FG[:, own] = torch.from_numpy((regression.coef_ / scaler.scale_).T)
    bias_G[own] = torch.from_numpy(regression.intercept_ - regression.coef_ @ (scaler.mean_ / scaler.scale_))
    return weight_FG, bias_G
