"""Successive halving: finds the best, keeps to its episodes, goes on where it was interrupted."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.compare.halving import Halving, Pair, plan_rungs


def value_of(pair: Pair) -> float:
    """Candidate 77 is best on average; hosts differ by far more than candidates."""
    candidate, host = pair
    return 10.0 * (host % 3) - abs(candidate - 77) / 100


def play(pairs: list[Pair]) -> list[float]:
    return list(map(value_of, pairs))


def test_finds_the_best_of_125() -> None:
    halving = Halving(125)
    plans = plan_rungs(125, 4000, tasks=5)
    assert halving.run(plans, play, together=32) == 77
    assert halving.episodes == sum(plan.candidates * plan.hosts for plan in plans) <= 4000
    assert [plan.candidates for plan in plans] == [125, 63, 32, 16, 8, 4, 2]
    assert all(plan.hosts % 5 == 0 for plan in plans if plan.hosts >= 5)


def test_single_candidate_is_played_too() -> None:
    halving = Halving(1)
    assert halving.run(plan_rungs(1, 6, tasks=3), play, together=4) == 0
    assert halving.mean(0) == pytest.approx(10.0 - 0.77)
    assert halving.episodes == 6


class Interrupted(Exception):
    """Ends a search."""


@given(calls=st.integers(1, 30))
def test_interrupted_search_ends_as_another(calls: int) -> None:
    plans = plan_rungs(9, 60)
    whole = Halving(9)
    whole.run(plans, play, together=4)
    saved, left = [json.dumps(Halving(9).state)], [calls]
    first = Halving(9)

    def interrupted(pairs: list[Pair]) -> list[float]:
        if not left[0]:
            raise Interrupted
        left[0] -= 1
        return play(pairs)

    def save() -> None:
        saved.append(json.dumps(first.state))

    try:
        first.run(plans, interrupted, together=4, save=save)
    except Interrupted:
        first = Halving.of(json.loads(saved[-1]))
        first.run(plans, play, together=4)
    assert first.state == whole.state


@given(candidates=st.integers(1, 200), episodes=st.integers(1, 5000), tasks=st.integers(1, 6))
def test_rungs_end_with_one_candidate(candidates: int, episodes: int, tasks: int) -> None:
    plans = plan_rungs(candidates, episodes, tasks)
    alive = [plan.candidates for plan in plans] + [1]
    assert alive[0] == candidates
    assert all(-(-before // 2) == after for before, after in pairwise(alive))
    assert all(plan.hosts >= 1 for plan in plans)


@pytest.mark.parametrize("candidates", [1, 2])
def test_few_candidates(candidates: int) -> None:
    halving = Halving(candidates)
    assert halving.run(plan_rungs(candidates, 10), play, together=3) == candidates - 1
