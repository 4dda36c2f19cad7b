"""The processes of one attempt find each other in a store that remembers the attempts before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from esper_overwatch.trainer.compute.roll_call import Arrival, RollCall, record_home, take_roll_call

PATIENCE = timedelta(minutes=5)


def arrival(number: str, progress: tuple[int, ...] = ()) -> Arrival:
    return Arrival(number, f"host-{number}", 1, "gloo", list(progress))


def attempt(store: Store, arrivals: list[Arrival]) -> list[RollCall]:
    """What each of these processes is told."""
    with ThreadPoolExecutor(len(arrivals)) as pool:
        called = [
            pool.submit(take_roll_call, store, rank, len(arrivals), each, PATIENCE)
            for rank, each in enumerate(arrivals)
        ]
        return [each.result() for each in called]


def test_attempts_in_one_store_do_not_mix() -> None:
    store = HashStore()
    for count in range(1, 6):
        size = 2 + count % 3
        arrivals = [arrival(f"{count}.{rank}") for rank in range(size)]
        rolls = attempt(store, arrivals)
        assert rolls == [rolls[0]] * size
        assert rolls[0].arrivals == arrivals
        assert rolls[0].attempt == count


def test_processes_that_died_on_arrival_are_passed_over() -> None:
    store = HashStore()
    for rank in (1, 2):
        with pytest.raises(RuntimeError):
            take_roll_call(store, rank, 3, arrival(f"dead.{rank}"), timedelta(milliseconds=10))
    arrivals = [arrival(f"living.{rank}") for rank in range(3)]
    assert attempt(store, arrivals)[2].arrivals == arrivals


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(TimeoutError, match=r"of 4 ranks these did not come in 0:00:00.010000: 1, 2, 3"):
        take_roll_call(HashStore(), 0, 4, arrival("0"), timedelta(milliseconds=10))


@pytest.mark.parametrize(
    ("progress", "first"),
    [
        (((), (), ()), 0),
        (((), (1,), ()), 1),
        (((1, 4, 4, 0), (1, 4, 4, 0)), 0),
        (((1, 4, 4, 0), (1, 10, 10, 0), (1, 10, 10, 0)), 1),
        (((1,), (1, 1, 1, 0)), 1),
    ],
)
def test_newest_copy_of_the_run_is_rank_zero(progress: tuple[tuple[int, ...], ...], first: int) -> None:
    roll = RollCall("x", [arrival(str(i), each) for i, each in enumerate(progress)], 1)
    assert roll.first == first


def test_later_attempts_learn_where_the_run_is_kept() -> None:
    store = HashStore()
    (before,) = attempt(store, [arrival("a")])
    record_home(store, "here:/runs/big")
    (after,) = attempt(store, [arrival("b")])
    assert (before.home, after.home) == ("", "here:/runs/big")
