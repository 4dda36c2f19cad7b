"""Findings of a comparison: means by policy and by task, and paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from esper_overwatch.trainer.episode_table import EpisodeTable

from .intervals import METHOD, Interval, Matrix, mean_interval, paired_interval
from .policy_words import RIVALS, Word

COLUMNS = {
    "return": "episode_return",
    "test_accuracy": "test_accuracy",
    "added": "added_parameters",
    "fossilized": "fossilized",
}
"""Figures of each policy, and the columns of an episode table that they are means of."""
DIFFERENCES = ("return", "test_accuracy", "added")


@dataclass(frozen=True)
class PolicyResult:
    """A policy's episodes on the held-out hosts.

    Attributes:
        word: as it was asked for.
        tables: one for each training seed, or one where the policy was not trained; the same hosts in each.
        note: what was chosen or loaded, in words.
        training: what its training took, if it was trained.
        again: the episodes and the note of a second search, where the schedule was searched.
    """

    word: Word
    tables: Sequence[EpisodeTable]
    note: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    again: Sequence[tuple[EpisodeTable, str]] = ()

    @property
    def name(self) -> str:
        """For people."""
        return str(self.word)

    @property
    def is_learned(self) -> bool:
        """True if its lead is wanted: it was trained here, at whatever stage, or loaded from a file."""
        return self.word.base not in RIVALS

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of the hosts."""
        return self.tables[0].task

    def matrix(self, figure: str) -> Matrix:
        """One of `COLUMNS`, float64 [seeds, hosts]."""
        return np.array([getattr(table, COLUMNS[figure]) for table in self.tables], np.float64)

    def of_tasks(self, tasks: Sequence[str]) -> PolicyResult:
        """Restrict to the hosts of these tasks."""
        tables = [table.of_tasks(tasks) for table in self.tables]
        again = [(table.of_tasks(tasks), note) for table, note in self.again]
        return PolicyResult(self.word, tables, self.note, self.training, again)


def summarise(results: Sequence[PolicyResult], unseen: Sequence[str] = ()) -> dict[str, Any]:
    """All figures, as JSON has them.

    Args:
        unseen: tasks that no policy was trained on; figures over all hosts leave them out, where there are
            others.
    """
    tasks = list(dict.fromkeys(results[0].tasks))
    known = [task for task in tasks if task not in unseen]
    groups = {"trained": known, "unseen": [task for task in tasks if task in unseen]}
    return {
        "method": METHOD,
        "tasks": tasks,
        "averaged": known or tasks,
        "hosts": len(results[0].of_tasks(known or tasks).tasks),
        "policies": [_figures(result, known or tasks) for result in results],
        "searches": [_search(result.of_tasks(known or tasks)) for result in results if result.again],
        "differences": {
            group: _differences([result.of_tasks(names) for result in results])
            for group, names in groups.items()
            if names
        },
    }


def _figures(result: PolicyResult, known: Sequence[str]) -> dict[str, Any]:
    """Means over the hosts of the `known` tasks, and by task over those of each."""
    hosts = result.of_tasks(known)
    means = {figure: mean_interval(hosts.matrix(figure), hosts.tasks).to_dict() for figure in COLUMNS}
    by_task = {
        task: {figure: float(result.of_tasks([task]).matrix(figure).mean()) for figure in COLUMNS}
        for task in dict.fromkeys(result.tasks)
    }
    return {
        "name": result.name,
        "note": result.note,
        "seeds": len(result.tables),
        "figures": means,
        "by_task": by_task,
        "training": result.training,
    }


def _search(result: PolicyResult) -> dict[str, Any]:
    """What two searches have found, and how much more the first one's earns on the held-out hosts."""
    (table, note), *_ = result.again
    second = PolicyResult(result.word, [table]).matrix("return")
    noise = paired_interval(result.matrix("return"), second, result.tasks)
    return {"name": result.name, "first": result.note, "second": note, "return": noise.to_dict()}


def _differences(results: Sequence[PolicyResult]) -> list[dict[str, Any]]:
    """Differences of each learned policy and the others, of two such once; of each control and its policy;
    the ways to the oracle."""
    found = [
        _difference(first, second)
        for place, first in enumerate(results)
        for other, second in enumerate(results)
        if _is_told(first, second) and (other < place or first.word.control or not second.is_learned)
    ]
    by_name = {result.name: result for result in results}
    if {"constant", "oracle"} <= by_name.keys():
        for result in results:
            if result.is_learned:
                found.append(_way_to_oracle(result, by_name["constant"], by_name["oracle"]))
    return found


def _difference(first: PolicyResult, second: PolicyResult) -> dict[str, Any]:
    figures = {
        figure: paired_interval(first.matrix(figure), second.matrix(figure), first.tasks).to_dict()
        for figure in DIFFERENCES
    }
    return {"first": first.name, "second": second.name, **figures}


def _way_to_oracle(result: PolicyResult, constant: PolicyResult, oracle: PolicyResult) -> dict[str, Any]:
    """Share of the way from the best constant to the oracle, and the lead over a mark a third along it."""
    low, high, mine = (one.matrix("return") for one in (constant, oracle, result))
    mark = low + (high - low) / 3.0
    headroom = float((high - low).mean())
    share = float((mine.mean() - low.mean()) / headroom) if headroom > 0 else None
    lead: Interval = paired_interval(mine, mark, result.tasks)
    return {
        "first": result.name,
        "second": "a third of the way to oracle",
        "return": lead.to_dict(),
        "share": share,
    }


def _is_told(first: PolicyResult, second: PolicyResult) -> bool:
    """True for pairs that are reported: a learned policy and another, a control and its policy."""
    if first.word.control:
        return second.word == Word(first.word.base)
    return first.is_learned and not second.word.control
