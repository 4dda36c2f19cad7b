"""Searches for schedules: rounds of hosts follow what is most promising, until the episodes are spent.

Hosts are numbered from 0 and tasks dealt out in turn, so every task has the same share of every round and of
the whole search, give or take a host.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from esper_overwatch.trainer.compare.schedule_values import ScheduleValues

Records = dict[str, Tensor]
"""Finished episodes of n hosts: `context` float32 [n, F], `chosen` int64 [n], `paid` float64 [n]."""
Choose = Callable[[Tensor], Tensor]
"""What hosts have shown, float32 [n, F] -> the schedules that they follow, int64 [n]."""
PlayRound = Callable[[range, Choose], Records]
"""Episodes of these hosts."""


class Searcher(Protocol):
    """Chooses schedules for hosts, and learns from what they have earned."""

    def choose(self, hosts: range, context_NF: Tensor) -> Tensor:
        """int64 [N]: the schedules that these hosts are to try."""
        ...

    def observe(self, hosts: range, found: Records) -> None:
        """Learn from the finished episodes of these hosts."""
        ...


class TaskSearcher:
    """Searches with a Gaussian process by task: one schedule for all tasks, or one for each.

    Args:
        tasks: how many are dealt out.
        is_for_each: whether each task gets a schedule of its own. Else a schedule is tried on one host of
            every task, one after the other, so that no task has a greater say.
    """

    def __init__(self, tasks: int, schedule_KS: Tensor, *, is_for_each: bool) -> None:
        self._tasks, self._is_for_each = tasks, is_for_each
        self.values = ScheduleValues(tasks, schedule_KS)
        self._newest = 0

    def choose(self, hosts: range, context_NF: Tensor) -> Tensor:  # noqa: ARG002
        if self._is_for_each:
            return self.values.most_promising(torch.tensor([host % self._tasks for host in hosts]))
        left = min(len(hosts), -hosts.start % self._tasks)  # of a schedule that was begun in the last round
        begun = self.values.most_promising_on_average(-(-(len(hosts) - left) // self._tasks))
        going_on = torch.full((left,), self._newest)
        return torch.cat([going_on, begun.repeat_interleave(self._tasks)])[: len(hosts)]

    def observe(self, hosts: range, found: Records) -> None:
        rows = zip(hosts, found["chosen"].tolist(), found["paid"].tolist(), strict=True)
        for host, chosen, paid in rows:
            self.values.observe(host % self._tasks, chosen, paid)
            self._newest = chosen

    @property
    def best(self) -> list[int]:
        """By task the schedule with the highest posterior mean, in it or over all."""
        mean_GK = self.values.mean_GK
        if not self._is_for_each:
            mean_GK = mean_GK.mean(0).expand_as(mean_GK)
        best: list[int] = mean_GK.argmax(1).tolist()
        return best


def run_search(
    searcher: Searcher,
    play: PlayRound,
    *,
    episodes: int,
    together: int,
    part: bytes | None,
    begin: Callable[[int], None],
    save: Callable[[bytes, int], None],
) -> Records:
    """Play rounds until the episodes are spent; what was found in them.

    Args:
        together: hosts of a round.
        part: what an interrupted search has saved.
        begin: called with the episodes that it had done.
        save: called after every round with all that another call needs to go on, and the episodes done.
    """
    found = None if part is None else unpack(part)
    done = 0 if found is None else len(found["paid"])
    if found is not None:
        searcher.observe(range(done), found)
    begin(done)
    while done < episodes:
        hosts = range(done, min(done + together, episodes))
        new = play(hosts, partial(searcher.choose, hosts))
        searcher.observe(hosts, new)
        found = new if found is None else {name: torch.cat([found[name], new[name]]) for name in found}
        done = hosts.stop
        save(pack(found), done)
    assert found is not None, "a search has an episode at least"
    return found


def pack(content: Mapping[str, Any]) -> bytes:
    """Pack tensors, and containers of them, as `unpack` reads them."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """Unpack what `pack` packed; nothing in the file is executed."""
    unpacked: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return unpacked
