"""Alarms of healthy runs, and of faults: `python -m benchmarks.alarms`, `--short` for a minute.

Healthy: each preset that this machine has the data for, by the real daemon at its default options, with 8 and
64 envs, three seeds, quiet and beside four busy loops; critical incidents and warnings are counted from the
journals.
Faults: each one that tests inject, from its first epoch to its incident, and on to that incident's end; not
with `--short`, as tests/trainer/telemetry/test_faults.py holds as much of each.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import click

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.data.registry import load
from tests.trainer.telemetry.faults import INJECTIONS, warmed_up

from .daemon_rounds import trained
from .report import finish

PRESETS = ("digits", "digits-wait", "fashion-mnist", "mixture", "synthetic-32", "text")
"""Those for a CPU; `many-envs` is digits with 64."""
SHORT_ROUNDS = 2
BUSY_LOOPS = 4
MAX_EPOCHS = 64
"""In which a fault has to be raised, and after its end its incident over."""


@dataclass(frozen=True)
class Course:
    """One healthy run."""

    preset: str
    envs: int
    seed: int
    is_busy: bool
    rounds: int


@dataclass
class Alarms:
    """What a run has told."""

    rounds: int = 0
    epochs: int = 0
    critical: int = 0
    warnings: int = 0
    noted: int = 0
    red_epochs: int = 0
    """Epochs at whose end a critical incident was open."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Critical incidents and warnings by kind."""


def count_alarms(journal: Path) -> Alarms:
    """Count a journal's incidents by the worst severity that each reached."""
    found, worst, is_open = Alarms(), dict[str, tuple[str, str]](), dict[str, str]()
    for line in journal.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        data = event["data"]
        if event["type"] == "round.finished":
            found.rounds += 1
        elif event["type"] == "epoch":
            found.epochs += 1
            found.red_epochs += "critical" in is_open.values()
        elif event["type"] == "incident":
            worst[data["id"]] = data["severity"], data["kind"]
            is_open.pop(data["id"], None)
            if data["active"]:
                is_open[data["id"]] = data["severity"]
    counts = Counter(severity for severity, _ in worst.values())
    found.critical, found.warnings, found.noted = counts["critical"], counts["warning"], counts["info"]
    found.kinds = Counter(kind for severity, kind in worst.values() if severity != "info")
    return found


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep cores busy with loops that do nothing."""
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def _spin() -> None:
    while True:
        pass


def train(course: Course) -> Alarms:
    """Train a run by the daemon, in a home of its own."""
    options = ["--preset", course.preset, "--rounds", str(course.rounds), "--seed", str(course.seed)]
    options += ["--set", f"envs.count={course.envs}"]
    with busy_loops(BUSY_LOOPS if course.is_busy else 0), trained(*options) as journal:
        return count_alarms(journal)


def courses(*, short: bool, rounds: int) -> Iterator[Course]:
    """The healthy runs, of every preset before the next seed; of presets whose data is not here none."""
    if short:
        yield Course("digits", 8, 1, is_busy=True, rounds=min(rounds, SHORT_ROUNDS))
        return
    presets = [preset for preset in PRESETS if preset != "fashion-mnist" or _has(preset)]
    for preset in set(PRESETS) - set(presets):
        print(f"{preset} is left out: its files are not on this machine", flush=True)
    for envs, seed, is_busy, preset in product((8, 64), (1, 2, 3), (False, True), presets):
        yield Course(preset, envs, seed, is_busy, rounds)


def _has(dataset: str) -> bool:
    try:
        load(dataset)
    except EsperError:
        return False
    return True


def inject(reading: str) -> tuple[int | None, int | None]:
    """Inject a fault until its incident begins, then heal it until that is over: times of each."""
    injection, rig = INJECTIONS[reading], warmed_up()
    kind = reading.partition(".")[2]
    epoch, began = 0, list[str]()
    while not began:
        epoch += 1
        if epoch > injection.epochs:
            return None, None
        injection.inject(rig)
        began = [e.data.id for e in rig.take("incident") if kind in e.data.kinds and not e.data.over]
    for healed in range(1, MAX_EPOCHS + 1):
        injection.heal(rig)
        rig.run_epoch()
        if any(e.data.id == began[0] and e.data.over for e in rig.take("incident")):
            return epoch, healed
    return epoch, None


@click.command()
@click.option("--short", is_flag=True, help="One healthy run beside busy loops.")
@click.option("--rounds", default=20, show_default=True, help="Rounds of each healthy run.")
@click.option("--minutes", default=0.0, help="Begin no further run after so long; 0 = run all.")
def main(short: bool, rounds: int, minutes: float) -> None:
    """Print a row per healthy run and per fault, then the figures."""
    end = time.monotonic() + minutes * 60 if minutes else float("inf")
    total, left_out = Alarms(), 0
    print("preset         envs seed load  rounds  CRIT WARN noted  red epochs  kinds", flush=True)
    for course in courses(short=short, rounds=rounds):
        if time.monotonic() > end:
            left_out += 1
            continue
        one = train(course)
        state = "busy" if course.is_busy else "quiet"
        share = one.red_epochs / max(one.epochs, 1)
        row = f"{course.preset:<14} {course.envs:>4} {course.seed:>4} {state:<5} {one.rounds:>6}"
        counts = f"{one.critical:>4} {one.warnings:>4} {one.noted:>5} {share:>10.1%}"
        print(f"{row}  {counts}  {dict(one.kinds) or ''}", flush=True)
        for name in ("rounds", "epochs", "critical", "warnings", "noted", "red_epochs", "kinds"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
    if left_out:
        print(f"{left_out} runs were not begun within {minutes:g} minutes")
    print("fault                          raised after  over after", flush=True)
    silent = lasting = 0
    faults = [] if short else list(INJECTIONS)
    for reading in faults:
        raised, over = inject(reading)
        silent += raised is None
        lasting += raised is not None and over is None
        print(f"{reading:<30} {raised!s:>12}  {over!s:>10}", flush=True)
    finish(
        "alarms",
        {
            "rounds": total.rounds,
            "critical": total.critical,
            "warnings_per_20_rounds": 20 * total.warnings / max(total.rounds, 1),
            "red_epochs": total.red_epochs / max(total.epochs, 1),
            "faults": len(faults),
            "faults_without_incident": silent,
            "faults_whose_incident_stays": lasting,
        },
        {
            "critical": ("==", 0),
            "warnings_per_20_rounds": ("<=", 1),
            "faults_without_incident": ("==", 0),
            "faults_whose_incident_stays": ("==", 0),
        },
    )


if __name__ == "__main__":
    main()
