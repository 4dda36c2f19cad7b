"""Results of hosts under a policy, as an evaluation found them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EpisodeTable:
    """Results of N hosts; row i is the same host for every policy."""

    task: tuple[str, ...]
    """[N] what each learned."""
    instance: NDArray[np.int64]
    """[N] of the task, from 0 among those held out."""
    val_accuracy: NDArray[np.float64]
    """[N] after the last epoch, 0..1."""
    test_accuracy: NDArray[np.float64]
    """[N] the same on the test images."""
    added_parameters: NDArray[np.int64]
    """[N] of the seeds that the host holds at the end."""
    episode_return: NDArray[np.float64]
    """[N] sum of the rewards."""
    components: dict[str, NDArray[np.float64]]
    """[N] each, of the return, by name."""
    fossilized: NDArray[np.int64]
    """[N] seeds that are for good."""
    ops: NDArray[np.int64]
    """[N, ops] how often each op was chosen, in the order of `Op`."""
    blueprint: NDArray[np.int64]
    """[N, S] of the seeds at the end, by their place in the run's blueprints; -1 where there is none."""
    style: NDArray[np.int64]
    """[N, S] of these, `Style` codes."""

    def __len__(self) -> int:
        return len(self.task)

    def of_task(self, task: str) -> EpisodeTable:
        """The rows of the hosts that learned a task."""
        return self.of_tasks((task,))

    def of_tasks(self, tasks: Sequence[str]) -> EpisodeTable:
        """The rows of the hosts that learned one of these."""
        chosen = np.array([name in tasks for name in self.task], dtype=np.bool_)
        columns: dict[str, Any] = {
            f.name: getattr(self, f.name)[chosen]
            for f in fields(self)
            if f.name not in ("task", "components")
        }
        components = {name: column[chosen] for name, column in self.components.items()}
        names = tuple(name for name in self.task if name in tasks)
        return EpisodeTable(task=names, components=components, **columns)

    @classmethod
    def joined(cls, tables: Sequence[EpisodeTable]) -> EpisodeTable:
        """The rows of several tables, one after the other."""
        names = [f.name for f in fields(cls) if f.name not in ("task", "components")]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(table, name) for table in tables]) for name in names
        }
        components = {
            name: np.concatenate([table.components[name] for table in tables])
            for name in tables[0].components
        }
        return cls(task=tuple(t for table in tables for t in table.task), components=components, **columns)

    def to_builtins(self) -> dict[str, Any]:
        """Lists and numbers, for JSON and checkpoints; `from_builtins` reads them."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "components")}
        return {
            "task": list(self.task),
            "components": {name: column.tolist() for name, column in self.components.items()},
            **{name: column.tolist() for name, column in parts.items()},
        }

    @classmethod
    def from_builtins(cls, parts: dict[str, Any]) -> EpisodeTable:
        whole = ("instance", "added_parameters", "fossilized", "ops", "blueprint", "style")
        columns: dict[str, Any] = {
            name: np.array(values, np.int64 if name in whole else np.float64)
            for name, values in parts.items()
            if name not in ("task", "components")
        }
        components = {name: np.array(values, np.float64) for name, values in parts["components"].items()}
        return cls(task=tuple(parts["task"]), components=components, **columns)


NORMAL_QUANTILE_95 = 1.96
"""Standard errors on either side of a mean that hold 95 % of a normal distribution."""


class Lead(NamedTuple):
    """Lead of the return over a rival's: mean of the differences host by host, and its interval."""

    mean: float
    low: float
    high: float
    """`low` to `high` is the 95 % confidence interval over the hosts, of a normal distribution."""


def lead_over(mine: EpisodeTable, rival: EpisodeTable) -> Lead:
    """The lead of a policy over another on the same hosts; without an interval where there is one host."""
    differences = mine.episode_return - rival.episode_return
    mean, n = float(differences.mean()), len(differences)
    half = NORMAL_QUANTILE_95 * float(differences.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Lead(mean, mean - half, mean + half)


@dataclass(frozen=True)
class PolicyEvaluation:
    """A policy was played on the held-out hosts."""

    policy: str
    """Kind of the policy."""
    is_rival: bool
    table: EpisodeTable
    seconds: float
    leads: dict[str, Lead] = field(default_factory=dict)
    """Over the rivals that were played, where it is not one of them."""
    is_best: bool = False
    """The run's policy had no higher mean return in any evaluation before."""
