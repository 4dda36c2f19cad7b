"""The processes that train together in this attempt: those that torchrun has just started, on all machines.

torchrun's store outlives the processes, and with it what those of earlier attempts wrote. torchrun's count of
restarts does not tell attempts apart: a machine whose rank has died counts one, another that only restarts
its ranks because of that does not. So every process writes a random number into the store; rank 0 answers
each that it finds until all have confirmed the answer: the dead never confirm.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

import msgspec
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

_POLL_SECONDS = 0.05


class Arrival(msgspec.Struct, frozen=True):
    """A process's announcement to the others."""

    number: str
    """Random; names the process."""
    host: str
    pid: int
    backend: str
    """Backend that its machine can use, see `choose_backend`."""
    progress: list[int] = []
    """Progress of its machine's copy of the run; empty where there is none."""


class RollCall(msgspec.Struct, frozen=True):
    """An attempt."""

    number: str
    """Number of the process that torchrun calls rank 0; names the attempt."""
    arrivals: list[Arrival]
    """Arrivals by torchrun's rank."""
    attempt: int
    """Counts those that this store has seen, from 1."""
    home: str = ""
    """Home folder in which an earlier attempt keeps the run; empty where none has begun."""

    @property
    def first(self) -> int:
        """The rank of torchrun whose machine's copy of the run is the newest, else 0."""
        ranks = range(len(self.arrivals))
        return max(ranks, key=lambda rank: (self.arrivals[rank].progress, -rank))


_encode = msgspec.json.encode


def take_roll_call(store: Store, rank: int, size: int, arrival: Arrival, patience: timedelta) -> RollCall:
    """Wait until all are there; the same result on every rank.

    Args:
        store: torchrun's.
        rank: torchrun's, of this process.
        size: the number of processes.
        arrival: this process.
        patience: how long to wait for the others.

    Raises:
        TimeoutError: some did not come; says which.
        RuntimeError: the store does not answer, or rank 0 did not.
    """
    store = PrefixStore("esper", store)
    if rank > 0:
        store.set(f"arrival/{rank}", _encode(arrival).decode())
        store.wait([f"answer/{arrival.number}"], patience)
        number = store.get(f"answer/{arrival.number}").decode()
        store.set(f"confirmed/{number}/{rank}", arrival.number)
        store.wait([f"roll/{number}"], patience)
        return msgspec.json.decode(store.get(f"roll/{number}"), type=RollCall)
    arrivals = {0: arrival, **_answer_arrivals(store, size, arrival.number, patience)}
    home = store.get("home").decode() if store.check(["home"]) else ""
    roll = RollCall(arrival.number, [arrivals[i] for i in range(size)], store.add("attempts", 1), home)
    store.set(f"roll/{roll.number}", _encode(roll).decode())
    return roll


def record_home(store: Store, home: str) -> None:
    """Tell later attempts where this one keeps the run."""
    PrefixStore("esper", store).set("home", home)


def _answer_arrivals(store: Store, size: int, number: str, patience: timedelta) -> Mapping[int, Arrival]:
    """Rank 0: by rank, who has confirmed the answer."""
    found: dict[int, Arrival] = {}
    missing = set(range(1, size))
    end = time.monotonic() + patience.total_seconds()
    while missing:
        for rank in sorted(missing):
            if not store.check([f"arrival/{rank}"]):
                continue
            there = msgspec.json.decode(store.get(f"arrival/{rank}"), type=Arrival)
            if found.get(rank) != there:
                found[rank] = there
                store.set(f"answer/{there.number}", number)
            confirmed = f"confirmed/{number}/{rank}"
            if store.check([confirmed]) and store.get(confirmed).decode() == there.number:
                missing.discard(rank)
        if missing and time.monotonic() > end:
            ranks = ", ".join(map(str, sorted(missing)))
            raise TimeoutError(f"of {size} ranks these did not come in {patience}: {ranks}")
        if missing:
            time.sleep(_POLL_SECONDS)
    return found
