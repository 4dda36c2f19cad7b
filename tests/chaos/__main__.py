"""Chaos: a real daemon, what can happen to it at random from a seed, and what must hold at the end.

    python -m tests.chaos --minutes 15 [--seed N]

The sequence of acts is decided by the seed alone; the moments are not. Beside them a client writes down all
events that it receives, and others send commands. After each act the run must go on. At the end the journal,
read with json and zstd alone, must be dense and without duplicates; what was received must be its lines, byte
for byte; each command must have had one effect and one answer, or been refused as it had to be; every epoch's
figures must be those of the same training without interruption, bit for bit; no process may be left, and
memory must be bounded. The last line is JSON. Exit code 0 only if all held, 1 if not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any

from .checks import check_clients, check_seeds, check_training, events_of, newest_round, train_uninterrupted
from .clients import Commander, Recorder
from .faults import FAULTS, Fault, Scene
from .site import BrokenPromise, Site, Victim, opened

MAX_GROWTH_BYTES = 128 * 2**20
"""By how much a boot's memory may exceed that of the first one before anything happened to it."""


def acts(seed: int) -> Iterator[tuple[Fault, random.Random]]:
    """The endless sequence of a seed: each fault once in random order, then again, with its own generator."""
    order = random.Random(seed)
    for number in itertools.count():
        deck = list(FAULTS)
        order.shuffle(deck)
        for fault in deck:
            yield fault, random.Random(f"{seed}/{number}/{fault.name}")


def say(begin: float, what: str) -> None:
    print(f"{time.monotonic() - begin:7.1f} s  {what}", flush=True)


def wreak(scene: Scene, seed: int, seconds: float) -> dict[str, int]:
    """Act until the time is over; how often each fault was done.

    Raises:
        BrokenPromise: something did not hold right after an act; the message names it.
    """
    begin, done = time.monotonic(), dict[str, int]()
    for number, (fault, rng) in enumerate(acts(seed), start=1):
        if time.monotonic() - begin > seconds:
            break
        if fault.needs in scene.site.missing:
            continue
        scene.rng = rng
        say(begin, f"act {number} of seed {seed}: {fault.name} ...")
        try:
            did = fault.do(scene)
            scene.victim.check_service()
        except BrokenPromise as broken:
            raise BrokenPromise(f"act {number}, {fault.name} ({fault.holds}): {broken}") from broken
        say(begin, f"act {number} of seed {seed}: {fault.name}: {did}")
        done[fault.name] = done.get(fault.name, 0) + 1
    for peers in scene.silent:
        peers.close()
    return done


def check_memory(victim: Victim, before: int) -> int:
    """The highest growth over `before`, in bytes.

    Raises:
        BrokenPromise: it is more than may be.
    """
    boot, highest = max(victim.memory, key=lambda row: row[1])
    if highest - before > MAX_GROWTH_BYTES:
        raise BrokenPromise(
            f"boot {boot} had {highest >> 20} MiB, {before >> 20} MiB when nothing had happened"
        )
    return highest - before


def run(site: Site, victim: Victim, seed: int, seconds: float) -> dict[str, Any]:
    """The acts, then the checks; the figures.

    Raises:
        BrokenPromise: something did not hold.
    """
    victim.check_service()
    before = max(rss for _, rss in victim.memory)
    scene = Scene(site, victim, random.Random(seed))
    victim.recorder = recorder = Recorder(victim.run)
    clock = victim.is_clock_right
    commander = Commander(victim.run, random.Random(f"{seed}/commands"), victim.port, clock)
    try:
        done = wreak(scene, seed, seconds)
    finally:
        commander.close()
        recorder.close()
    if (code := victim.end()) != 0:
        raise BrokenPromise(f"exit code {code} after the last SIGTERM")
    if (code := victim.end_gateway()) != 0:
        raise BrokenPromise(f"exit code {code} of the gateway after SIGTERM")
    growth = check_memory(victim, before)
    if left := site.processes():
        raise BrokenPromise(f"processes are left: {left}")
    chaotic = victim.run / "events.jsonl"
    figures = check_clients(chaotic, recorder, commander, scene.cut)
    whole = train_uninterrupted(site, newest_round(events_of(chaotic)))
    figures |= check_training(chaotic, whole) | check_seeds(chaotic)
    return {"acts": sum(done.values()), "faults": done, **figures, "growth_mib": growth >> 20}


def main() -> int:
    """Parse the command line, run, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="duration of the acts (default: 15)")
    parser.add_argument("--seed", type=int, help="decides the sequence of acts (default: at random)")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    command = f"python -m tests.chaos --minutes {given.minutes:g} --seed {seed}"
    print(command, flush=True)
    with opened() as (site, victim):
        for need, why in site.missing.items():
            names = ", ".join(fault.name for fault in FAULTS if fault.needs == need)
            print(f"not possible here: {names}: {why}", flush=True)
        error, figures = None, dict[str, Any]()
        try:
            figures = run(site, victim, seed, given.minutes * 60)
        except BrokenPromise as broken:
            error = str(broken)
            print(f"BROKEN: {error}\nagain: {command}\ndaemon.log ends with:", flush=True)
            print((victim.run / "daemon.log").read_text(errors="replace")[-3000:], flush=True)
        missing = [fault.name for fault in FAULTS if fault.needs in site.missing]
    held = error is None
    result = {"name": "chaos", "seed": seed, "minutes": given.minutes, **figures, "not_possible": missing}
    print(json.dumps(result | {"error": error, "again": command, "held": held}), flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
