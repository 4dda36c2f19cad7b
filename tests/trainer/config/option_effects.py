"""For every option a value that is not its default, and where its effect shows."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.client.client import connect
from esper_overwatch.protocol.messages.vocabulary import Stage

from .forked_starts import CLOCKED, Start

COMMON = (
    "device=cpu",
    "envs.count=2",
    "envs.group_size=2",
    "envs.threads=1",
    "envs.convolution=grouped",
    "telemetry.stride=1",
    "task.batches_per_epoch=1",
    "episode_epochs=6",
    "rounds=2",
)
LONG = ("policy.kind=random", "episode_epochs=24", "rounds=1", "task.batches_per_epoch=2")
TEXT = ("task.dataset=text", "policy.kind=no_growth", "rounds=1", "task.batch_size=8")
WILD = ("host.learning_rate=10", "host.momentum=0.999", "seeds.max_grad_norm=0", "task.batches_per_epoch=8")
"""Gradients that are told as critical."""
BASES: dict[str, tuple[str, ...]] = {
    "ppo": (),
    "random": LONG,
    "no_growth": ("policy.kind=no_growth", "rounds=1"),
    "fixed": (*LONG, "policy.kind=fixed"),
    "strict": (*LONG, "policy.kind=fixed", "seeds.gates=strict"),
    "text": TEXT,
    "wild": (*LONG, "policy.kind=fixed", *WILD),
    "endless": ("rounds=0", "envs.group_size=1"),
}
"""Runs that flips are compared with, by what they add to `COMMON`."""
LOADED = ("task.batches_per_epoch=80", "task.batch_size=256", "policy.kind=no_growth", "rounds=1")
"""More than a second of work on any machine."""

Shows = Callable[[Start, Start], None]
"""Asserts the effect: the base run, the flipped run."""
Look = Callable[[Path, int], dict[str, Any]]


@dataclass(frozen=True)
class Flip:
    """A value of an option, and where its effect shows."""

    value: str
    shows: Shows
    base: str = "ppo"
    with_: tuple[str, ...] = ()
    """Set in the base run, too."""
    look: Look | None = None
    """What to find out while the run trains."""


@dataclass(frozen=True)
class Elsewhere:
    """An option whose effect needs another machine, or more time, and the test that shows it there."""

    reason: str
    test: str


def without_clock(value: Any) -> Any:
    """A value without what a clock measures."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if key not in CLOCKED}
    return value


def changes(*columns: str, same: tuple[str, ...] = (), first: int = 0) -> Shows:
    """Each of these columns differs from the base's, and those of `same` do not.

    Args:
        first: rows at the beginning in which nothing differs yet.
    """

    def shows(base: Start, flipped: Start) -> None:
        for name in columns:
            before, after = base.column(name), flipped.column(name)
            assert after, f"{name} is in no event"
            assert before != after, f"{name} is as it was"
            assert before[:first] == after[:first], f"{name} differs at once"
        for name in same:
            assert base.column(name) == flipped.column(name), f"{name} differs, too"

    return shows


def tells(column: str, value: Any, *others: str) -> Shows:
    """The column's every value is this one, and was not; the other columns differ."""

    def shows(base: Start, flipped: Start) -> None:
        found = flipped.column(column)
        assert found == [value] * len(found)
        assert found
        assert base.column(column) != found, f"{column} is as it was"
        changes(*others)(base, flipped)

    return shows


def measured(what: Callable[[Start], Any], before: Any, after: Any) -> Shows:
    """Something of the run is so in the base run, and so in the flipped one."""

    def shows(base: Start, flipped: Start) -> None:
        assert (what(base), what(flipped)) == (before, after)

    return shows


def grows(what: Callable[[Start], float]) -> Shows:
    """Something of the run is more than in the base run."""

    def shows(base: Start, flipped: Start) -> None:
        assert what(flipped) > what(base)

    return shows


def shrinks(what: Callable[[Start], float]) -> Shows:
    """Something of the run is less than in the base run."""

    def shows(base: Start, flipped: Start) -> None:
        assert what(flipped) < what(base)

    return shows


def refused(*words: str) -> Shows:
    """The start ends with one line that has these words."""

    def shows(base: Start, flipped: Start) -> None:
        assert flipped.exit_code in (9, 10)
        (line,) = flipped.printed.splitlines()
        assert all(word in line for word in words), line

    return shows


def counts(kind: str) -> Callable[[Start], int]:
    """How many events of a type there are."""
    return lambda start: start.count(kind)


def course(name: str) -> Callable[[Start], list[Any]]:
    """A column's values, in order; numbers to nine digits."""
    return lambda start: [round(x, 9) if isinstance(x, float) else x for x in start.column(name)]


def longest_stay(stage: str) -> Callable[[Start], int]:
    """Most epochs between the entering of a stage and the leaving of it."""

    def epochs(start: Start) -> int:
        entered: dict[Any, int] = {}
        stays = [0]
        for event in start.events:
            if event["type"] == "seed.stage":
                data, epoch = event["data"], event["ctx"]["epoch"]
                place = (event["ctx"]["env"], data["slot"])
                if data["to_stage"] == stage:
                    entered[place] = epoch
                elif data["from_stage"] == stage:
                    stays.append(epoch - entered[place])
        return max(stays)

    return epochs


def together(*stages: Stage) -> Callable[[Start], bool]:
    """Whether a host ever had two seeds in these stages at once."""

    def found(start: Start) -> bool:
        hosts = [host for epoch in start.column("epoch:stage") for host in epoch]
        return any(sum(stage in stages for stage in host) > 1 for host in hosts)

    return found


def debug_epochs(start: Start) -> int:
    """Epochs in which layers were measured."""
    return start.count("layers")


def periodic(start: Start) -> bool:
    """Whether a checkpoint was saved within a round."""
    return "periodic" in start.column("checkpoint.saved:reason")


def closed_segments(start: Start) -> int:
    """Closed segments of the journal."""
    return len(start.files("segments/events-*.jsonl*"))


def components(start: Start) -> set[str]:
    """Names of the reward's components."""
    return {name for each in start.column("epoch:reward_components") for name in each}


def blueprints(start: Start) -> set[str]:
    """Kinds of the seeds that were planted."""
    return {kind for kind in start.column("seed.stage:blueprint") if kind is not None}


def checks_of(gate: str) -> Callable[[Start], set[str]]:
    """Names of a gate's checks."""

    def checks(start: Start) -> set[str]:
        rows = [e["data"] for e in start.events if e["type"] == "seed.gate" and e["data"]["gate"] == gate]
        return {name for row in rows for name in row["checks"]}

    return checks


def scraped(folder: Path, pid: int) -> dict[str, Any]:
    """Whether the address of the metrics that the log names answers."""
    log = (folder / "daemon.log").read_text(encoding="utf-8")
    addresses = {word for word in log.split() if word.startswith("http://")}
    for address in addresses:
        url = address.replace("0.0.0.0", "127.0.0.1")
        with urllib.request.urlopen(url, timeout=300) as answer:
            assert b"esper_" in answer.read()
    return {"addresses": len(addresses)}


def limits_of(signal: str) -> Look:
    """The limits of a signal as viewers are given them."""

    def look(folder: Path, pid: int) -> dict[str, Any]:
        with connect(folder.name, home=folder.parents[1]) as client:
            threshold = client.hello()["thresholds"][signal]
        return {"warning": threshold["warning"], "critical": threshold["critical"]}

    return look


def workers(wanted: int) -> Look:
    """Look until so many threads have been seen that train hosts, in stacks that the run dumps when asked."""

    def look(folder: Path, pid: int) -> dict[str, Any]:
        os.kill(pid, signal.SIGUSR1)
        log = (folder / "daemon.log").read_text(encoding="utf-8")
        _, *stacks = re.split(r"hread (0x[0-9a-f]+) ", log)
        seen = {
            thread for thread, stack in zip(stacks[::2], stacks[1::2], strict=True) if "in _worker" in stack
        }
        return {"workers": len(seen)} if len(seen) >= wanted else {}

    return look


def sees(**found: float) -> Shows:
    """The look at the live run has found this, and that at the base run, where there was one, has not."""

    def shows(base: Start, flipped: Start) -> None:
        assert flipped.seen == found
        assert base.seen != found

    return shows
