"""What must hold at the end: a dense journal, and the figures of an uninterrupted run, bit for bit."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from esper_overwatch.protocol.journal.reader import read
from tests.seed_counting import count_seeds

from .clients import Commander, Recorder
from .plain import Line, parsed, plain_lines
from .site import PATIENCE_SECONDS, TRAINING, BrokenPromise, Site, until

FIGURES = frozenset(
    {
        "epoch",
        "drift",
        "ppo.update",
        "round.finished",
        "shapley.computed",
        "seed.stage",
        "seed.gate",
        "seed.ended",
    }
)
TIMES = frozenset(
    {"seconds", "phases", "cpu_phases", "gpu_phases", "gpu_round", "gpu_epoch", "env_epochs_per_second"}
)
Place = tuple[int, int, str]
"""(round, epoch, stream)"""
Figures = dict[Place, list[str]]


def check_dense(events: Iterable[Line]) -> dict[str, int]:
    """The numbers of each stream are 1, 2, 3 and so on, over all boots; gives the newest.

    Raises:
        BrokenPromise: one is missing, or is there twice.
    """
    last: dict[str, int] = {}
    for event in events:
        if event.seq != last.get(event.stream, 0) + 1:
            raise BrokenPromise(f"{event.stream} {event.seq} comes after {last.get(event.stream, 0)}")
        last[event.stream] = event.seq
    return last


def figures_by_boot(events: Iterable[Line]) -> list[Figures]:
    """What was trained, per boot and place in the order written, without times."""
    boots: list[Figures] = []
    for event in events:
        if event.type == "run.started":
            boots.append(defaultdict(list))
        if event.type not in FIGURES:
            continue
        data = {key: value for key, value in event.data.items() if key not in TIMES}
        subject = {key: value for key, value in event.ctx.items() if key not in ("level", "round", "epoch")}
        boots[-1][*event.place, event.stream].append(json.dumps([event.type, subject, data]))
    return boots


def check_figures(boots: list[Figures], whole: Figures) -> int:
    """Every epoch of every boot is that of the uninterrupted run, and none is missing; gives their number.

    A boot's first and last place may hold a part: it was resumed, or ended, within it.

    Raises:
        BrokenPromise: a figure is another, or an epoch is missing.
    """
    held: set[tuple[Place, str]] = set()
    for number, boot in enumerate(boots, start=1):
        edges = {min(boot)[:2], max(boot)[:2]} if boot else set()
        for place, figures in boot.items():
            expected = whole.get(place, [])
            if figures != expected and not (place[:2] in edges and _is_part(figures, expected)):
                raise BrokenPromise(f"boot {number}, {place}: {_first_difference(figures, expected)}")
            held.update((place, figure) for figure in figures)
    end = max(place[:2] for boot in boots for place in boot)
    for place, expected in whole.items():
        if place[:2] < end and (lost := [figure for figure in expected if (place, figure) not in held]):
            raise BrokenPromise(f"{place} of the uninterrupted run is in no boot: {lost[0][:200]}")
    return len({place[:2] for boot in boots for place in boot})


def _is_part(part: list[str], whole: list[str]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def _first_difference(figures: list[str], expected: list[str]) -> str:
    for figure, wanted in zip(figures, expected, strict=False):
        if figure != wanted:
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(figure, wanted, strict=False))
            begin = max(0, len(list(same)) - 60)
            return f"{figure[begin : begin + 120]} instead of {wanted[begin : begin + 120]}"
    return f"{len(figures)} events instead of {len(expected)}"


def newest_round(events: Iterable[Line]) -> int:
    """The highest round that any boot has begun; the last boot may have gone on from an older checkpoint."""
    return max(place[0] for boot in figures_by_boot(events) for place in boot)


def train_uninterrupted(site: Site, rounds: int) -> Path:
    """Train so many rounds in one go; the journal's path.

    Raises:
        BrokenPromise: it did not end in order.
    """
    sets = [word for item in TRAINING for word in ("--set", item)]
    process = site.start("whole.err", "start", "whole", *sets)
    journal = site.home / "runs" / "whole" / "events.jsonl"
    wanted = f"round {rounds}:".encode()
    log = journal.with_name("daemon.log")

    def is_done() -> bool:
        if process.poll() is not None:
            raise BrokenPromise(f"the uninterrupted run ended with {process.returncode}")
        return log.exists() and wanted in log.read_bytes()

    until("the uninterrupted run", is_done, PATIENCE_SECONDS + 10.0 * rounds)
    process.terminate()
    if (code := process.wait(PATIENCE_SECONDS)) != 0:
        raise BrokenPromise(f"the uninterrupted run ended with {code}")
    return journal


def check_training(chaotic: Path, whole: Path) -> dict[str, int]:
    """The journal is dense, and its figures are those of the uninterrupted run; gives the counts.

    Raises:
        BrokenPromise: something does not hold.
    """
    (expected,) = figures_by_boot(events_of(whole))
    events = events_of(chaotic)
    last = check_dense(events)
    boots = figures_by_boot(events)
    return {"events": sum(last.values()), "boots": len(boots), "epochs": check_figures(boots, expected)}


def check_seeds(chaotic: Path) -> dict[str, int]:
    """Seeds are counted alike by all that count them; gives how many there are.

    Raises:
        BrokenPromise: they are not.
    """
    try:
        return {"seeds": count_seeds(chaotic).total()}
    except AssertionError as error:
        raise BrokenPromise(f"seeds are counted differently: {error}") from error


def events_of(journal: Path) -> list[Line]:
    """A journal's events, which the product's reader gives as they stand there.

    Raises:
        BrokenPromise: a line is none, or the product reads others.
    """
    lines = plain_lines(journal)
    if [event.line for event in read(journal)] != lines:
        raise BrokenPromise(f"the product reads {journal} otherwise than it stands there")
    try:
        return [parsed(line) for line in lines]
    except (ValueError, KeyError) as error:
        raise BrokenPromise(f"{journal} has a line that is no event: {error}") from error


def check_clients(
    chaotic: Path, recorder: Recorder, commander: Commander, cut: dict[str, dict[str, int]]
) -> dict[str, int]:
    """What the clients were told is what the journal holds; gives the counts.

    Raises:
        BrokenPromise: it is not; says what, and how much else.
    """
    events = events_of(chaotic)
    held = {(event.stream, event.seq): event.raw for event in events}
    received = recorder.judge(held, cut)
    boots = [event for event in events if event.type in ("run.started", "run.stopped")]
    ends = itertools.pairwise([*boots, boots[0]])
    whole = {
        one.data["boot"] for one, then in ends if [one.type, then.type] == ["run.started", "run.stopped"]
    }
    figures = commander.judge(events, whole)
    if problems := recorder.problems + commander.problems:
        raise BrokenPromise(f"{problems[0]} (and {len(problems) - 1} more)")
    return {"received": received, **figures}
