"""Minutes of load with readers that are stopped, killed and come back: nobody who lives misses a line.

`SOAK_SECONDS` says how long (60 by default, as in CI).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from esper_overwatch.protocol.codec.json_lines import LINE_PREFIX
from esper_overwatch.protocol.journal.reader import lines_newest_first
from esper_overwatch.protocol.runs import find_run

from .harness import until

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
FLAT_BYTES = 10 * 2**20
STREAMS = ("life", "metric", "log")

DAEMON = """
import select, sys, time
from esper_overwatch import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
seconds = float(sys.argv[1])
server = Server(RunFolder.claim("soak"), hello={})
server.start()
print("ready", flush=True)
begin = time.monotonic()
n = 0
while n < seconds * 5000 or not select.select([sys.stdin], [], [], 0)[0]:
    due = int((time.monotonic() - begin) * 5000)
    for n in range(n + 1, min(due, n + 200) + 1):  # after a stall it catches up bit by bit
        if n % 5 == 0:  # a ring of 20,000 events is full after 20 s, before memory is looked at
            server.emitter.emit(ev.Mark(text=f"mark {n}", client="soak"))
        elif n % 5 == 1:
            server.emitter.emit(ev.LogLine(level="INFO", logger="soak", message=f"line {n}"))
        else:
            server.emitter.emit(ev.SystemSample(cpu_percent=n, rss=n, memory_total=1, memory_used=1,
                                                load1=0.5, cores=2, disk_free=1))
    server.beat(n, 0)
    time.sleep(0.004)
assert not any(server.emitter.dropped.values()), server.emitter.dropped
server.flush(300)
server.close("over")
"""

READER = """
import sys, zlib
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
with Subscriber("soak", streams=("life", "metric", "log")) as subscriber, open(sys.argv[1], "w") as file:
    for item in subscriber.items():
        if isinstance(item, Event):
            print(item.stream, item.seq, zlib.crc32(item.line), file=file)
        elif isinstance(item, Reset):
            print("reset 0 0", file=file, flush=True)
"""


class Readers:
    """Processes that write down what they read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", READER, str(self.folder / name)]
        self.processes[name] = subprocess.Popen(arguments)
        return self.processes[name]

    def held(self, name: str) -> list[tuple[str, int, int]]:
        """(stream, number, checksum) of what a reader wrote down; a killed one's last line may be torn."""
        path = self.folder / name
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        rows = (line.split() for line in text.splitlines())
        return [(stream, int(seq), int(crc)) for stream, seq, crc in rows]


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    made = Readers(tmp_path)
    yield made
    for process in made.processes.values():
        process.kill()
        process.wait()


def check(held: list[tuple[str, int, int]], journal: dict[str, dict[int, int]], *, to_the_end: bool) -> None:
    """One join, no hole, no repeat, no other line than the journal's."""
    assert [row[0] for row in held].count("reset") == 1, "it never had to begin again"
    for stream in STREAMS:
        mine = [(seq, crc) for s, seq, crc in held if s == stream]
        assert mine, stream
        first, last = mine[0][0], mine[-1][0]
        assert [seq for seq, _ in mine] == list(range(first, last + 1)), stream
        assert all(journal[stream][seq] == crc for seq, crc in mine), stream
        if to_the_end:
            assert last == max(journal[stream]), stream


def stop_and_go(process: subprocess.Popen[bytes], rng: random.Random) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 4.0))
    process.send_signal(signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
def test_every_reader_that_lives_holds_the_journal(home: Path, readers: Readers) -> None:
    rng = random.Random(11)
    command = [sys.executable, "-c", DAEMON, str(SECONDS)]
    daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        begin = time.monotonic()
        process = psutil.Process(daemon.pid)
        steady, frozen, killed = (readers.start(name) for name in ("steady", "frozen", "killed"))
        again = ["again-0"]
        readers.start(again[0])
        memory: list[tuple[float, int]] = []
        work: list[Callable[[], None]] = [
            lambda: stop_and_go(frozen, rng),
            lambda: time.sleep(rng.uniform(0.5, 2.0)),
        ]
        while (elapsed := time.monotonic() - begin) < SECONDS - 6:
            rng.choice(work)()
            memory.append((elapsed, process.memory_info().rss))
            if elapsed > SECONDS / 3:
                killed.kill()
            if len(memory) % 4 == 0 and len(again) < 6:
                readers.processes[again[-1]].send_signal(signal.SIGKILL)
                again.append(f"again-{len(again)}")
                readers.start(again[-1])
        until(lambda: all(readers.held(name) for name in ("steady", "frozen", again[-1])))
        memory.append((time.monotonic() - begin, process.memory_info().rss))
        daemon.stdin.close()  # all who are to the end have joined
        until(lambda: daemon.poll() is not None, seconds=SECONDS + 300)
        assert daemon.returncode == 0
        for reader in (steady, frozen, readers.processes[again[-1]]):
            assert reader.wait(300) == 0
    finally:
        daemon.kill()
        daemon.wait()
    journal: dict[str, dict[int, int]] = {stream: {} for stream in STREAMS}
    for line in lines_newest_first(find_run("soak").path / "events.jsonl"):
        head = LINE_PREFIX.match(line)
        assert head is not None
        journal[head[2].decode()][int(head[1])] = zlib.crc32(line)
    assert sum(map(len, journal.values())) >= 5000 * SECONDS
    check(readers.held("steady"), journal, to_the_end=True)
    check(readers.held("frozen"), journal, to_the_end=True)
    check(readers.held(again[-1]), journal, to_the_end=True)
    for name in ("killed", *again[:-1]):
        if (held := readers.held(name)) and held[-1][0] != "reset":
            check(held, journal, to_the_end=False)
    warm = [rss for at, rss in memory if at > SECONDS / 2]
    assert max(warm) - warm[0] <= FLAT_BYTES, [f"{at:.0f} s {rss >> 20} MiB" for at, rss in memory]
