"""What is done to the daemon. `FAULTS` is the table: name, what it does, what must hold right after.

Each takes its randomness from the generator that it is given, waits for conditions and not for times where it
can, and tells in a few words what it did. What all of them promise, that the run goes on and loses nothing,
is checked by whoever calls them.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from esper_overwatch import connect
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.trainer.checkpoint import Checkpoints
from tests.power.disk import ForgetfulDisk
from tests.power.promises import lose_power

from .clients import connection_of
from .peers import Peers
from .site import BrokenPromise, Site, Victim, until


@dataclass
class Scene:
    """What faults act upon."""

    site: Site
    victim: Victim
    rng: random.Random
    silent: list[Peers] = field(default_factory=list)
    """Peers that never read, held over other acts."""
    cut: dict[str, dict[str, int]] = field(default_factory=dict)
    """Boots that have lost their power: the newest numbers that were left, per stream."""
    damaged: dict[Path, bytes] = field(default_factory=dict)
    """Checkpoints that an act has damaged, and what was left in them."""

    def is_damaged(self, path: Path) -> bool:
        """Whether an earlier act damaged it and no newer checkpoint has taken its place."""
        return self.damaged.get(path) == path.read_bytes()

    def peers(self) -> Peers:
        found = until("the sockets' addresses", lambda: connection_of(self.victim.run).get("endpoints"))
        return Peers(found, self.victim.port)


def kill(scene: Scene) -> str:
    time.sleep(scene.rng.uniform(0.0, 1.5))
    scene.victim.kill()
    scene.victim.start()
    return "killed, started"


def kill_while_saving(scene: Scene) -> str:
    folder = scene.victim.checkpoints
    scene.victim.ask("ctl", "checkpoint")
    with contextlib.suppress(BrokenPromise):  # it may be too quick to be seen
        until("a checkpoint is being written", lambda: any(folder.glob(".round-*")), 20.0, every=0.0)
    scene.victim.kill()
    half = [path.name for path in folder.glob(".round-*")]
    scene.victim.start()
    return f"killed beside {half[0] if half else 'no half checkpoint, none was seen in time'}, started"


def kill_after_saving(scene: Scene) -> str:
    """The checkpoint must not be ahead of the journal: what it holds is not trained again."""
    folder = scene.victim.checkpoints
    before = {path.name for path in folder.glob("round-*")}
    scene.victim.ask("ctl", "checkpoint")
    new = until("a checkpoint", lambda: {path.name for path in folder.glob("round-*")} - before, every=0.0)
    scene.victim.kill()
    scene.victim.start()
    return f"killed at the sight of {new.pop()}, started"


def terminate(scene: Scene) -> str:
    if (code := scene.victim.end()) != 0:
        raise BrokenPromise(f"exit code {code} after SIGTERM")
    scene.victim.start()
    return "SIGTERM, exit code 0, started"


def freeze(scene: Scene) -> str:
    seconds = scene.rng.uniform(0.2, 5.0)
    scene.victim.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    scene.victim.process.send_signal(signal.SIGCONT)
    return f"SIGSTOP for {seconds:.1f} s"


def fill_disk(scene: Scene) -> str:
    """Everything that it has to write waits or is given up with a word, and training goes on."""
    filler, seconds = scene.site.disk / "filler", scene.rng.uniform(0.5, 3.0)
    errors = until("status", scene.victim.status)["journal"]["errors"]
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 20)):
                pass
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 512):
                pass
        now = until(
            "the journal meets the full disk",
            lambda: (s := scene.victim.status()) and s["journal"]["errors"] > errors and s,
        )
        until("it trains on", lambda: (scene.victim.status() or now)["seq"]["metric"] > now["seq"]["metric"])
        time.sleep(seconds)
    finally:
        filler.unlink()
    return f"no space for {seconds:.1f} s after the journal met it"


def limit_file_size(scene: Scene) -> str:
    """Like a full disk, where none can be mounted: no file may grow beyond what the journal has now."""
    process, seconds = psutil.Process(scene.victim.pid), scene.rng.uniform(0.5, 3.0)
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    size = (scene.victim.run / "events.jsonl").stat().st_size + 1000
    process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))
    try:
        time.sleep(seconds)
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    return f"no file over {size} bytes for {seconds:.1f} s"


def limit_file_numbers(scene: Scene) -> str:
    process, seconds = psutil.Process(scene.victim.pid), scene.rng.uniform(0.5, 3.0)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    spare, count = scene.rng.randrange(3), scene.rng.randrange(20, 60)
    peers = scene.peers()
    doors = [address for address in peers.addresses if isinstance(address, Path)]

    def are_shut() -> bool:
        """The limit follows where files are closed, and leaves room: libzmq ends where it cannot accept."""
        number = process.num_fds()
        process.rlimit(psutil.RLIMIT_NOFILE, (number + number // 4, hard))
        return not any(door.exists() for door in doors)

    try:
        until("local doors are shut", are_shut)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + spare, hard))
        with peers.flood(scene.rng, count):
            time.sleep(seconds)
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
        peers.close()
    return f"{spare} file numbers to spare and {count} connections for {seconds:.1f} s"


def damage_checkpoint(scene: Scene) -> str:
    """It goes on from the newest that is whole, and says so."""
    scene.victim.kill()
    whole = [
        path for path in Checkpoints(scene.victim.checkpoints, keep=0).all() if not scene.is_damaged(path)
    ]
    *_, before, newest = [None, None, *whole]
    if newest is None or before is None:
        scene.victim.start()
        return "killed, started; there was no checkpoint to damage that has one before it"
    content = bytearray(newest.read_bytes())
    at = scene.rng.randrange(len(content) - 80)
    content[at] ^= scene.rng.randrange(1, 256)
    newest.write_bytes(content)
    scene.damaged[newest] = bytes(content)
    scene.victim.start()
    path, words = scene.victim.run / "daemon.log", f"the run goes on from {before.name}"
    told = f"byte {at} of {newest.name} was damaged, and {before.name} is taken"
    until(told, lambda: words in path.read_text(errors="replace").rpartition(", boot ")[2])
    return f"byte {at} of {newest.name} flipped; it went on from {before.name}"


def tear_journal(scene: Scene) -> str:
    """The torn end is cut off at the next start; complete lines stay."""
    scene.victim.kill()
    torn = scene.rng.choice((b'{"seq":1,"stream":"life"', bytes(4096), b"\xff\xfe junk\n" * 3, b"\n\n"))
    with (scene.victim.run / "events.jsonl").open("ab") as file:
        file.write(torn)
    scene.victim.start()
    cut = until("status", scene.victim.status)["journal"]["cut_bytes"]
    if cut < len(torn):
        raise BrokenPromise(f"{cut} bytes were cut off, {len(torn)} were junk")
    return f"{len(torn)} bytes of junk behind the journal, {cut} cut off"


def lose_indexes(scene: Scene) -> str:
    """Manifest and indexes are made again of the segments."""
    scene.victim.kill()
    folder = SegmentFolder(scene.victim.run / "events.jsonl")
    gone = [path for path in (folder.manifest_path, *folder.path.glob("*.index.json")) if path.exists()]
    for path in gone:
        path.unlink()
    scene.victim.start()
    if gone:
        until("the manifest is made again", folder.manifest_path.exists)
    return f"manifest and indexes removed, {len(gone)} files"


def damage_copy(scene: Scene) -> str:
    """In a copy, as from a bad disk: one frame is lost and named, every other line is the same."""
    rng, copy = scene.rng, scene.site.folder / "copy"
    folder = SegmentFolder(scene.victim.run / "events.jsonl")
    if not (packed := folder.numbers(".jsonl.zst")):
        return "no segment is compressed yet"
    path = folder.packed(rng.choice(packed))
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "segments").mkdir(parents=True)
    shutil.copy(path, copy / "segments")
    whole = {(event.stream, event.seq): event.line for event in read(copy / "events.jsonl")}
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    content[at] ^= rng.randrange(1, 256)
    (copy / "segments" / path.name).write_bytes(content)
    report = DamageReport()
    found = list(read(copy / "events.jsonl", on_bad=report.note))
    if any(whole.get((event.stream, event.seq)) != event.line for event in found):
        raise BrokenPromise(f"byte {at} of {path.name} is damaged, and a line is another")
    if not report.num_places:
        raise BrokenPromise(f"byte {at} of {path.name} is damaged, and nothing is said")
    return f"byte {at} of a copy of {path.name} flipped; {len(found)} of {len(whole)} events are held"


def remove_sockets(scene: Scene) -> str:
    what = scene.rng.choice(("one socket", "all sockets", "folder", "connection file", "runtime folder"))
    doors = [Path(e.removeprefix("ipc://")) for e in scene.peers().endpoints.values()]
    if what == "one socket":
        scene.rng.choice(doors).unlink(missing_ok=True)
    elif what == "all sockets":
        for door in doors:
            door.unlink(missing_ok=True)
    elif what == "folder":
        shutil.rmtree(doors[0].parent, ignore_errors=True)
    elif what == "connection file":
        (scene.victim.run / "connection.json").unlink(missing_ok=True)
    else:
        for child in scene.site.runtime.iterdir():
            shutil.rmtree(child, ignore_errors=True)
    return f"removed: {what}"


def send_garbage(scene: Scene) -> str:
    peers, times = scene.peers(), scene.rng.randrange(5, 40)
    try:
        return f"{peers.send_garbage(scene.rng, times)} messages of garbage at six doors"
    finally:
        peers.close()


def flood(scene: Scene) -> str:
    peers, count = scene.peers(), scene.rng.randrange(100, 600)
    seconds = scene.rng.uniform(0.2, 2.0)
    try:
        with peers.flood(scene.rng, count) as held:
            time.sleep(seconds)
    finally:
        peers.close()
    return f"{held} connections that say nothing, for {seconds:.1f} s"


def stop_reading(scene: Scene) -> str:
    """They stay over the next acts; the third such act ends the first one's."""
    peers, count = scene.peers(), scene.rng.randrange(2, 12)
    peers.stop_reading(count)
    scene.silent.append(peers)
    while len(scene.silent) > 2:
        scene.silent.pop(0).close()
    return f"{2 * count} subscribers and {count} askers that never read"


def kill_gateway(scene: Scene) -> str:
    """What serves; the command starts another."""
    gateway, address = psutil.Process(scene.victim.gateway.pid), f"tcp://127.0.0.1:{scene.victim.port}"
    before = scene.victim.pid

    def answers() -> bool:
        with contextlib.suppress(EsperError), connect(address, key="watcher") as run:
            return bool(run.status()["pid"] == before)
        return False

    for child in gateway.children():
        child.kill()
    until("a killed gateway serves again", answers)
    return "by SIGKILL"


def jump_clock(scene: Scene) -> str:
    """In a boot of its own, whose wall clock is read from a file."""
    scene.victim.kill()
    offsets = scene.rng.sample((-7_200, 432_000, -259_200, 90, -1), 2)
    for number, offset in enumerate((0, *offsets)):
        partial = scene.site.clock.with_suffix(".new")
        partial.write_text(str(offset))
        os.replace(partial, scene.site.clock)
        if number == 0:
            scene.victim.start("clock")
        scene.victim.check_service()
    if (code := scene.victim.end()) != 0:
        raise BrokenPromise(f"exit code {code} after SIGTERM under a clock that jumped")
    scene.victim.start()
    return f"the wall clock jumped by {offsets[0]} and {offsets[1]} s, SIGTERM, started"


def cut_power(scene: Scene) -> str:
    """In a boot of its own, all of whose writes are recorded."""
    scene.victim.kill()
    disk, scene.victim.sync_ms = ForgetfulDisk(scene.site.home), scene.rng.choice((0, 30, 300))
    scene.victim.start("recorded")
    time.sleep(scene.rng.uniform(0.0, 3.0))
    boot = str(connection_of(scene.victim.run)["boot"])
    scene.victim.kill()
    try:
        left = lose_power(disk, scene.site.record, scene.victim.run, scene.rng)
    except AssertionError as broken:
        raise BrokenPromise(str(broken)) from broken
    scene.cut[boot] = left.newest
    scene.victim.start()
    return f"the power went, and {left.num_lost} events with it; started"


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    name: str
    do: Callable[[Scene], str]
    holds: str
    """What must hold right after, beside what `Victim.check_service` looks at after each."""
    needs: str = ""
    """A key of `Site.missing`: where it is there, this fault is not possible."""


FAULTS = (
    Fault("kill", kill, "the lock is free, the run is resumed"),
    Fault("kill while saving", kill_while_saving, "the checkpoints before are whole"),
    Fault("kill after saving", kill_after_saving, "the journal holds what the checkpoint holds"),
    Fault("terminate", terminate, "exit code 0, with a checkpoint"),
    Fault("freeze", freeze, "no event is dropped"),
    Fault("full disk", fill_disk, "training goes on, the journal waits and is written later", "disk"),
    Fault("file size limit", limit_file_size, "as with a full disk"),
    Fault("file number limit", limit_file_numbers, "training goes on, doors open again"),
    Fault("damaged checkpoint", damage_checkpoint, "the one before is taken, with a warning"),
    Fault("torn journal", tear_journal, "junk is cut off, complete lines stay"),
    Fault("lost indexes", lose_indexes, "they are made again"),
    Fault("damaged segment", damage_copy, "all other frames are read, the loss is named"),
    Fault("removed sockets", remove_sockets, "they are bound again"),
    Fault("garbage", send_garbage, "it is refused and counted"),
    Fault("flood", flood, "clients are let in"),
    Fault("silent readers", stop_reading, "nobody else waits, memory is bounded"),
    Fault("gateway killed", kill_gateway, "it serves again, the run has not noticed"),
    Fault("clock jump", jump_clock, "nothing depends on the wall clock", "recorder"),
    Fault("power cut", cut_power, "what is said to be on the disk is there", "recorder"),
)
