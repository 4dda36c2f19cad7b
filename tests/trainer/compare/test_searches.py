"""Searches: they find the best schedules, deal tasks out evenly, and go on where they were interrupted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch.trainer.compare.searches import Choose, PlayRound, Records, TaskSearcher, run_search
from esper_overwatch.trainer.policy.schedule_values import all_schedules

SCHEDULES = all_schedules(3, 3, "")
TASKS = 3
FOR_ALL, OWN = 21, (1, 37, 60)
"""Schedules that are best on average, and in each task."""


def worth(task: int, schedule: int) -> float:
    alike = {best: float((SCHEDULES[best] == SCHEDULES[schedule]).sum()) / 3 for best in (FOR_ALL, *OWN)}
    return 0.5 * alike[FOR_ALL] + 0.3 * alike[OWN[task]] + 0.4 * (schedule == OWN[task])


def play(hosts: range, choose: Choose) -> Records:
    """Returns with a deviation of .05, a function of the host."""
    context = torch.zeros(len(hosts), 0)
    chosen = choose(context)
    paid = []
    for host, schedule in zip(hosts, chosen.tolist(), strict=True):
        noise = torch.randn((), generator=torch.Generator().manual_seed(host))
        paid.append(worth(host % TASKS, schedule) + 0.05 * float(noise))
    return {"context": context, "chosen": chosen, "paid": torch.tensor(paid, dtype=torch.float64)}


def search(
    play: PlayRound, *, is_for_each: bool, episodes: int = 600, part: bytes | None = None
) -> tuple[TaskSearcher, list[bytes], Records]:
    searcher, saved = TaskSearcher(TASKS, SCHEDULES, is_for_each=is_for_each), []
    found = run_search(
        searcher,
        play,
        episodes=episodes,
        together=8,
        part=part,
        begin=lambda _: None,
        save=lambda content, _: saved.append(content),
    )
    return searcher, saved, found


@pytest.mark.parametrize("is_for_each", [False, True])
def test_search_finds_what_is_within_noise_of_the_best(is_for_each: bool) -> None:
    searcher, _, found = search(play, is_for_each=is_for_each)
    worth_GK = torch.tensor([[worth(task, k) for k in range(len(SCHEDULES))] for task in range(TASKS)])
    if not is_for_each:
        worth_GK = worth_GK.mean(0, keepdim=True).expand(TASKS, -1)
    assert (worth_GK[range(TASKS), searcher.best] >= worth_GK.amax(1) - 0.02).all()
    assert len(set(searcher.best)) == (TASKS if is_for_each else 1)
    assert len(found["paid"]) == 600
    assert searcher.values.tried_GK.sum(1).tolist() == [200] * TASKS


def test_schedule_for_all_tasks_is_tried_in_each() -> None:
    _, _, found = search(play, is_for_each=False, episodes=60)
    assert all(len(set(block.tolist())) == 1 for block in found["chosen"].split(TASKS))


@settings(max_examples=10)
@given(rounds=st.integers(0, 4), is_for_each=st.booleans())
def test_interrupted_search_ends_as_another(rounds: int, is_for_each: bool) -> None:
    _, saved, whole = search(play, is_for_each=is_for_each, episodes=37)
    part = saved[rounds - 1] if rounds else None
    _, _, resumed = search(play, is_for_each=is_for_each, episodes=37, part=part)
    assert all(whole[name].equal(resumed[name]) for name in whole)
