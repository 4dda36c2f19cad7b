"""The judge of the chaos is judged: what it should find, it finds; a seed gives one sequence of acts."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from esper_overwatch.protocol.messages.events import Context, LogLine, SeedStage
from tests.batches import batch_of
from tests.protocol.values import an_event

from .__main__ import acts
from .checks import check_dense, check_figures, figures_by_boot, newest_round
from .faults import FAULTS
from .plain import Line, parsed
from .site import BrokenPromise


def event(seq: int, place: tuple[int, int], data: object) -> Line:
    return parsed(batch_of(seq, seq, Context(round=place[0], epoch=place[1]), data).line(0))


def run(*places: tuple[int, int], alpha: float = 0.5) -> list[Line]:
    """One boot, with two figures per place."""
    begin = LogLine(level="INFO", logger="x", message="")
    events = [dataclasses.replace(event(1, (0, 0), begin), type="run.started")]
    for number, (place, n) in enumerate(itertools.product(places, range(2)), start=2):
        moved = an_event(SeedStage, slot=f"r0c{n}", alpha=alpha)
        events.append(event(number, place, moved))
    return events


WHOLE = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]


def check(*boots: list[Line]) -> int:
    (whole,) = figures_by_boot(run(*WHOLE))
    return check_figures([figures for boot in boots for figures in figures_by_boot(boot)], whole)


def test_sequence_of_acts_follows_from_the_seed() -> None:
    def first(seed: int) -> list[tuple[str, float]]:
        return [(fault.name, rng.random()) for fault, rng in itertools.islice(acts(seed), 50)]

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert {name for name, _ in first(1)[: len(FAULTS)]} == {fault.name for fault in FAULTS}


def test_resumed_boots_are_accepted() -> None:
    assert check(run((1, 1), (1, 2), (1, 3)), run((1, 3), (2, 1), (2, 2))) == 5
    torn = run((1, 1), (1, 2))
    assert check([torn[0], *torn[1:4]], run((1, 2), (1, 3), (2, 1), (2, 2))) == 5


def test_newest_round_is_that_of_any_boot() -> None:
    """Not the last one's, which may have gone on from an older checkpoint."""
    assert newest_round([*run((1, 1), (2, 1)), *run((1, 2))]) == 2


@pytest.mark.parametrize(
    ("boots", "why"),
    [
        ([run(*WHOLE, alpha=0.50000001)], "instead of"),
        ([run((1, 1), (1, 2)), run((2, 1), (2, 2))], "is in no boot"),
        ([[e for e in run(*WHOLE) if e.seq != 5]], "instead of"),
    ],
)
def test_other_and_missing_figures_are_found(boots: list[list[Line]], why: str) -> None:
    with pytest.raises(BrokenPromise, match=why):
        check(*boots)


def test_holes_and_duplicates_are_found() -> None:
    lines = run((1, 1), (1, 2))[1:]
    lines = [dataclasses.replace(line, seq=number) for number, line in enumerate(lines, start=1)]
    assert check_dense(lines) == {"life": 4}
    for broken in ([*lines[:1], *lines[2:]], [*lines[:3], *lines[2:]]):
        with pytest.raises(BrokenPromise, match="comes after"):
            check_dense(broken)
