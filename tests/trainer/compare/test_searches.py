"""Searches and the bandit: what they find, how tasks are dealt out, and how they go on when interrupted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch.trainer.compare.bandit import Bandit
from esper_overwatch.trainer.compare.schedule_values import all_schedules
from esper_overwatch.trainer.compare.searches import Choose, PlayRound, Records, TaskSearcher, run_search

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


def see(hosts: range) -> torch.Tensor:
    """Contexts that distinguish the tasks, amid noise."""
    noise_NF = torch.stack([torch.randn(6, generator=torch.Generator().manual_seed(1000 + h)) for h in hosts])
    task_NG = torch.nn.functional.one_hot(torch.tensor([host % TASKS for host in hosts]), TASKS)
    return torch.cat([task_NG * 3.0 + 0.3 * noise_NF[:, :TASKS], 0.3 * noise_NF[:, TASKS:]], 1)


def test_bandit_finds_by_contexts_what_each_task_wants() -> None:
    """Without labels; the schedule that is best for all earns .6, the best of each task .87."""

    def play_seen(hosts: range, choose: Choose) -> Records:
        context_NF = see(hosts)
        return play(hosts, lambda _: choose(context_NF)) | {"context": context_NF}

    bandit, new = Bandit(SCHEDULES, seed=1), range(5000, 5030)
    found = run_search(
        bandit, play_seen, episodes=240, together=16, part=None, begin=lambda _: None, save=lambda *_: None
    )
    chosen = bandit.best(see(new))
    assert sum(worth(host % TASKS, k) for host, k in zip(new, chosen.tolist(), strict=True)) > 0.75 * 30
    again = Bandit(SCHEDULES, seed=2)
    again.observe(range(240), found)
    assert again.best(see(new)).equal(chosen), "it is the episodes that it knows by"
