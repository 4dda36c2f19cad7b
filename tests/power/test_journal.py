"""A journal and a file that is replaced, over power cuts at every step of what a process did to them."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages.events import RoundStarted
from tests.batches import batches_of
from tests.chaos.plain import parsed, plain_lines

from .disk import ForgetfulDisk, build_recorder, compiler, read_steps, recording

WRITER = """
import os, sys, time
from pathlib import Path
from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.protocol.messages.events import RoundStarted
from esper_overwatch.protocol.storage.folders import make_private, write_atomically
from tests.batches import batches_of
folder = make_private(Path(sys.argv[1]) / "runs" / "x", advice="")
acks = os.open(folder.parent.parent / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
write_atomically(folder / "note", b"0")
os.write(acks, b"note 0\\n")
journal = Journal(folder / "events.jsonl", JournalLimits(segment_bytes=1500))
for n in range(1, 46, 3):
    journal.append(batches_of([RoundStarted(rounds=n)] * 3, n))
    if n % 4 == 0:
        write_atomically(folder / "note", b"%d" % n)
        os.write(acks, b"note %d\\n" % n)
    journal.sync()
    if n % 4 == 1:
        time.sleep(0.002)
        journal.append(batches_of([RoundStarted(rounds=n)] * 3, n + 3))  # most often while the disk is busy
        ticket = journal.sync()
        while journal.synced < ticket:
            time.sleep(0.001)
            journal.sync()
        os.write(acks, b"line %d\\n" % (n + 5))
    while n % 2 and journal.segments["not_compressed"]:
        time.sleep(0.001)
journal.close()
os.write(acks, b"line 45\\n")
"""


def acknowledged(told: bytes, what: str) -> int:
    """The newest number that the process has said is on the disk."""
    numbers = [int(line.split()[1]) for line in told.decode().splitlines() if line.startswith(what)]
    return max(numbers, default=-1)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, where that can be: thousands of syncs take no time there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as path:
        yield Path(path)


def test_nothing_that_was_said_to_be_on_disk_is_lost(folder: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here (Debian: gcc)")
    root, record, rng = folder / "disk", folder / "record", random.Random(1)
    root.mkdir()
    empty = ForgetfulDisk(root)
    environment = os.environ | recording(build_recorder(folder), root, record, sync_ms=10)
    subprocess.run([sys.executable, "-c", WRITER, str(root)], env=environment, check=True)
    steps = read_steps(record)
    assert len(steps) > 100
    for end, chance in itertools.product(range(len(steps) + 1), (None, rng)):
        disk = empty.copy()
        disk.take(steps[:end])
        told = dict(disk.written()).get(str(root / "acks"), b"")
        disk.lose_power(chance)
        check(root / "runs" / "x", told)


def check(folder: Path, told: bytes) -> None:
    """What was acknowledged is there, and the journal goes on without a hole."""
    if (number := acknowledged(told, "note")) >= 0:
        assert int((folder / "note").read_bytes()) >= number
    if not folder.exists():
        assert acknowledged(told, "line") < 0
        return
    journal = Journal(folder / "events.jsonl")
    newest = journal.last.get("life", 0)
    assert newest >= acknowledged(told, "line")
    journal.append(batches_of([RoundStarted(rounds=0)], newest + 1))
    journal.close()
    assert [parsed(line).seq for line in plain_lines(journal.path)] == list(range(1, newest + 2))
