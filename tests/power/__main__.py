"""Power cuts: a daemon that trains, and a disk that forgets what was not synced.

    python -m tests.power --cuts 200 [--seed N]

At a random moment, sometimes while the daemon starts, its process is killed, its files become what `disk.py`
says that the disk would hold, and the run is resumed from them; in the first fifth of the cuts every other
one is of a new run. Nothing that was said to be on the disk may be missing, no checkpoint may hold an epoch
that the journal has not. At the end the journal must be dense, and every epoch's figures those of the same
training without interruption. The last line is JSON. Exit code 0 only if all held, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import sys
import time
from typing import Any

from tests.chaos.checks import check_training, events_of, newest_round, train_uninterrupted
from tests.chaos.site import Site, Victim, opened

from .disk import ForgetfulDisk
from .promises import Left, lose_power

FIRST_SHARE = 0.2
"""Cuts of which every other one is of a new run: the folder is removed before it."""
STARTING_SHARE = 0.2
"""Cuts while the daemon starts."""
OWN = ("journal.segment_bytes=65536", "checkpoint.every_seconds=1")


def cut(site: Site, victim: Victim, rng: random.Random) -> Left:
    """Start the daemon, and cut its power; what is left.

    Raises:
        AssertionError: a promise does not hold.
    """
    disk, victim.sync_ms = ForgetfulDisk(site.home), rng.choice((0, 30, 300))
    if rng.random() < STARTING_SHARE:
        victim.spawn("recorded")
        time.sleep(rng.uniform(0.5, 6.0))
    else:
        victim.start("recorded")
        time.sleep(rng.uniform(0.0, 3.0))
    victim.status()
    victim.kill()
    return lose_power(disk, site.record, victim.run, rng)


def run(site: Site, victim: Victim, seed: int, cuts: int) -> dict[str, Any]:
    """All cuts, then the checks of the whole; the figures.

    Raises:
        AssertionError: a promise does not hold.
    """
    victim.kill()
    left, rng = list[Left](), random.Random(seed)
    for number in range(1, cuts + 1):
        if number <= cuts * FIRST_SHARE and number % 2:
            shutil.rmtree(victim.run, ignore_errors=True)
        try:
            left.append(cut(site, victim, rng))
        except AssertionError as broken:
            raise AssertionError(f"cut {number}: {broken}") from broken
        if number % 10 == 0:
            print(f"{number} cuts", flush=True)
    victim.start()
    assert victim.end() == 0, "SIGTERM after the last cut"
    victim.end_gateway()
    journal = victim.run / "events.jsonl"
    whole = train_uninterrupted(site, newest_round(events_of(journal)))
    lost = {
        "cuts": cuts,
        "cuts_with_loss": sum(one.num_lost > 0 for one in left),
        "lost_events": sum(one.num_lost for one in left),
        "lost_seconds_at_most": max(one.lost_seconds for one in left),
    }
    return lost | check_training(journal, whole)


def main() -> int:
    """Parse the command line, run, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="how often (default: 200)")
    parser.add_argument("--seed", type=int, help="decides what the disk forgets (default: at random)")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    command = f"python -m tests.power --cuts {given.cuts} --seed {seed}"
    print(command, flush=True)
    figures, error = dict[str, Any](), None
    with opened(*OWN) as (site, victim):
        try:
            figures = run(site, victim, seed, given.cuts)
        except AssertionError as broken:
            error = str(broken)
            print((victim.run / "daemon.log").read_text(errors="replace")[-2000:], flush=True)
    held = error is None
    print(
        json.dumps({"name": "power", "seed": seed, **figures, "error": error, "again": command, "held": held})
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
