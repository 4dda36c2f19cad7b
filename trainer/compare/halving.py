"""Successive halving: the best of many candidates, chosen with a given number of episodes.

Each rung gets the same share of the episodes, plays all candidates that are left on the same hosts, and keeps
the better half by the mean over all rungs so far (Karnin, Koren and Somekh, "Almost optimal exploration in
multi-armed bandits", ICML 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Pair = tuple[int, int]
"""A candidate, and a host that it is played on."""
Play = Callable[[list[Pair]], list[float]]
"""Returns of the candidates on these hosts."""


@dataclass(frozen=True)
class RungPlan:
    """Work of one rung.

    Attributes:
        candidates: how many are left.
        hosts: on which each of them is played.
    """

    candidates: int
    hosts: int


def plan_rungs(candidates: int, episodes: int, tasks: int = 1) -> list[RungPlan]:
    """Rungs until one candidate is left, at least one; each has an equal share of the episodes.

    Args:
        tasks: where there is enough for it, the hosts of a rung are as many of each task.

    Returns:
        At least one host for each candidate of a rung, whatever `episodes` is.
    """
    alive, plans = candidates, []
    rungs = max(1, math.ceil(math.log2(candidates)))
    for _ in range(rungs):
        hosts = max(1, episodes // rungs // alive)
        if hosts >= tasks:
            hosts -= hosts % tasks
        plans.append(RungPlan(alive, hosts))
        alive = -(-alive // 2)
    return plans


@dataclass
class Halving:
    """A search in progress; `state` between two calls of `Play` is all of it.

    Attributes:
        returns: of each candidate, on the hosts 0, 1, ... that it was played on.
        rungs: finished ones.
        pending: returns of the rung that is under way, pair by pair.
    """

    candidates: int
    returns: dict[int, list[float]] = field(default_factory=dict)
    rungs: int = 0
    pending: list[float] = field(default_factory=list)

    def run(
        self, plans: Sequence[RungPlan], play: Play, *, together: int, save: Callable[[], None] = lambda: None
    ) -> int:
        """Finish the search; returns the winner.

        Args:
            plans: of `plan_rungs`.
            together: pairs that are played at once.
            save: called after each of these.
        """
        for rung, plan in enumerate(plans[self.rungs :], start=self.rungs):
            first = sum(earlier.hosts for earlier in plans[:rung])
            alive = self.best(plan.candidates)
            pairs = [(candidate, first + host) for candidate in alive for host in range(plan.hosts)]
            while len(self.pending) < len(pairs):
                chunk = pairs[len(self.pending) : len(self.pending) + together]
                self.pending += play(chunk)
                save()
            for (candidate, _), value in zip(pairs, self.pending, strict=True):
                self.returns.setdefault(candidate, []).append(value)
            self.rungs, self.pending = rung + 1, []
        return self.best(1)[0]

    def best(self, count: int) -> list[int]:
        """The best of those that were played most, the better first; all where none was played."""
        if not self.returns:
            return list(range(self.candidates))[:count]
        most = max(map(len, self.returns.values()))
        finalists = [c for c, values in self.returns.items() if len(values) == most]
        return sorted(finalists, key=lambda c: -self.mean(c))[:count]

    def mean(self, candidate: int) -> float:
        """Mean return of a candidate that was played."""
        values = self.returns[candidate]
        return sum(values) / len(values)

    @property
    def episodes(self) -> int:
        """Played in all."""
        return sum(map(len, self.returns.values())) + len(self.pending)

    @property
    def state(self) -> dict[str, Any]:
        """State as JSON takes it."""
        returns = {str(candidate): values for candidate, values in self.returns.items()}
        return {
            "candidates": self.candidates,
            "rungs": self.rungs,
            "returns": returns,
            "pending": self.pending,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Halving:
        """Go on from `state`."""
        returns = {int(candidate): list(values) for candidate, values in state["returns"].items()}
        return cls(state["candidates"], returns, state["rungs"], list(state["pending"]))
