"""A disk that refuses or dawdles: the trainer emits as before, readers are served, losses are reported."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.codec.json_lines import Batch
from esper_overwatch.protocol.journal import unsynced
from esper_overwatch.protocol.journal import writer as module
from esper_overwatch.protocol.journal.line_files import LineIndex
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.emitter import MAX_QUEUED
from esper_overwatch.protocol.server.server import Server
from tests.batches import batches_of
from tests.protocol.harness import Reader, until


def anomalies(reader: Reader) -> list[ev.Anomaly]:
    kinds = "journal_write", "disk_full"
    return [e.data for e in reader.events if e.type == "anomaly" and e.data.kind in kinds]


def rounds_of(reader: Reader) -> list[int]:
    return [e.data.rounds for e in reader.events if e.type == "round.started"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_refusing_disk_is_an_anomaly_and_readers_miss_nothing(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.1)
    one = reader("alpha", streams=("life",))
    one.read(lambda: one.subscriber.state == "live")
    write, refusing = os.write, threading.Event()

    def refuse(fd: int, data: bytes) -> int:
        if refusing.is_set() and fd == server._journal._fd:
            raise OSError(code, os.strerror(code))
        return write(fd, data)

    monkeypatch.setattr(os, "write", refuse)
    refusing.set()
    for n in range(500):
        server.emitter.emit(ev.RoundStarted(rounds=n))
    one.read(lambda: anomalies(one))
    raised = anomalies(one)[0]
    assert raised.active
    assert raised.kind == ("disk_full" if code == errno.ENOSPC else "journal_write")
    assert ("disk full" if code == errno.ENOSPC else os.strerror(code)) in raised.hint
    assert server.error is None
    refusing.clear()
    one.read(lambda: not anomalies(one)[-1].active)
    server.close()
    rounds = [e.data.rounds for e in read(server.run.events) if e.type == "round.started"]
    assert rounds == list(range(500))
    assert [e.data.rounds for e in one.events if e.type == "round.started"] == rounds


def test_full_disk_says_how_much_waits_as_it_grows(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reader("alpha", streams=("life", "log"))
    one.read(lambda: one.subscriber.state == "live")
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        if fd == server._journal._fd:
            raise OSError(code, os.strerror(code))
        return write(fd, data)

    code = errno.EDQUOT
    monkeypatch.setattr(os, "write", refuse)
    for told, more in enumerate((1, 2, 4), 1):
        for _ in range(more):
            server.emitter.emit(ev.LogLine(level="INFO", logger="x", message="x" * 2**20))
        one.read(lambda told=told: len(anomalies(one)) == told)
        assert anomalies(one)[-1].hint.startswith("disk full: ")
    code = errno.EIO
    one.read(lambda: anomalies(one)[-1].kind == "journal_write")
    states = [(each.kind, each.active) for each in anomalies(one)]
    assert states == [("disk_full", True)] * 3 + [("disk_full", False), ("journal_write", True)]
    values = [each.value or 0.0 for each in anomalies(one)[:3]]
    assert values[0] < values[1] < values[2]


def test_emitting_never_waits_for_disk_and_losses_are_counted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write does not return before all has been emitted: had `emit` waited, this would never end."""
    write, over, inside = os.write, threading.Event(), threading.Event()

    def dawdle(fd: int, data: bytes) -> int:
        if fd == server._journal._fd:
            inside.set()
            over.wait()
        return write(fd, data)

    server.flush()
    monkeypatch.setattr(os, "write", dawdle)
    server.emitter.emit(ev.RoundStarted(rounds=-1))
    try:
        assert inside.wait(300)
        for n in range(MAX_QUEUED["log"] + 1000):
            server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(n)))
        for n in range(5000):
            server.emitter.emit(ev.RoundStarted(rounds=n))
    finally:
        over.set()
    assert server.emitter.dropped == {"life": 0, "metric": 0, "trace": 0, "log": 1000}
    server.close()
    found = list(read(server.run.events))
    assert [e.data.rounds for e in found if e.type == "round.started"] == list(range(-1, 5000))
    assert [e.data.message for e in found if e.type == "log"] == [str(n) for n in range(MAX_QUEUED["log"])]
    lost = [(e.data.stream, e.data.count) for e in found if e.type == "telemetry.lost"]
    assert lost == [("log", 1000)]


def test_nobody_waits_for_the_disk_to_sync(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fdatasync does not return before all has been asked: had an answer waited, this would never end."""
    over, inside = threading.Event(), threading.Event()

    def dawdle(fd: int) -> None:
        assert fd == server._journal._fd
        inside.set()
        over.wait()

    one = reader("alpha", streams=("life",))
    one.read(lambda: one.subscriber.state == "live")
    monkeypatch.setattr(os, "fdatasync", dawdle)
    try:
        server.emitter.emit(ev.RoundStarted(rounds=1))
        assert inside.wait(300)
        with connect("alpha", home=server.run.path.parents[1]) as run:
            for n in range(2, 12):
                run.ping()
                server.emitter.emit(ev.RoundStarted(rounds=n))
                one.read(lambda n=n: rounds_of(one)[-1:] == [n])
    finally:
        over.set()
    server.close()
    assert [e.data.rounds for e in read(server.run.events) if e.type == "round.started"] == list(range(1, 12))


def test_failed_sync_is_reported_until_it_succeeds(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)
    one = reader("alpha", streams=("life",))
    one.read(lambda: one.subscriber.state == "live")
    synced, refused = os.fdatasync, [0]

    def refuse(fd: int) -> None:
        refused[0] += 1
        if refused[0] <= 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced(fd)

    monkeypatch.setattr(os, "fdatasync", refuse)
    server.emitter.emit(ev.RoundStarted(rounds=1))
    one.read(lambda: len(anomalies(one)) == 2)
    assert [anomaly.active for anomaly in anomalies(one)] == [True, False]
    assert os.strerror(errno.EIO) in anomalies(one)[0].hint
    assert refused[0] >= 4
    server.emitter.emit(ev.RoundStarted(rounds=2))
    server.close()
    assert [e.data.rounds for e in read(server.run.events) if e.type == "round.started"] == [1, 2]


class LosingDisk:
    """A disk that loses what it fails to sync, and says of the next sync that all is well, as Linux does."""

    def __init__(self, path: Path) -> None:
        self.failures = 0
        self._path, self._synced, self._sync = path, 0, os.fdatasync

    def fdatasync(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if self.failures:
            self.failures -= 1
            with self._path.open("r+b") as file:
                file.seek(self._synced)
                file.write(bytes(size - self._synced))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(fd)
        self._synced = size


@pytest.mark.parametrize("failures", [1, 3])
def test_what_a_failed_sync_has_lost_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    path = tmp_path / "events.jsonl"
    journal, disk = Journal(path), LosingDisk(path)
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    kinds = [ev.RoundStarted(rounds=1), ev.LogLine(level="INFO", logger="x", message="y")]
    batches = batches_of(kinds[n % 2] for n in range(8))
    journal.append(batches[:2])
    ticket = journal.sync()
    until(lambda: journal.append([]) or journal.synced == ticket)
    disk.failures = failures
    journal.append(batches[2:4])
    journal.sync()
    until(lambda: journal.append([]) or journal.error is not None)
    journal.append(batches[4:6])
    until(lambda: journal.append([]) or journal.error is None)
    disk.failures = 1
    journal.append(batches[6:])
    journal.close()
    assert path.read_bytes() == b"".join(batch.body for batch in batches)
    assert journal.lost == 0


def test_what_was_too_much_to_keep_counts_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(unsynced, "MAX_KEPT_BYTES", 100)
    path = tmp_path / "events.jsonl"
    journal, disk = Journal(path), LosingDisk(path)
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    disk.failures = 1
    journal.append(batches_of(ev.RoundStarted(rounds=n) for n in range(3)))
    journal.sync()
    until(lambda: journal.append([]) or journal.error is not None)
    until(lambda: journal.append([]) or journal.error is None)
    assert journal.lost == 3
    journal.close()


def test_what_follows_a_cut_is_not_of_the_sync_before(tmp_path: Path) -> None:
    tail = unsynced.UnsyncedTail(0)
    for piece in (b"one\n", b"two\n"):
        tail.append(memoryview(piece))
    tail.ask()
    tail.cut(6)
    for piece in (b"o\n", b"more\n"):
        tail.append(memoryview(piece))
    tail.confirm()
    path = tmp_path / "again"
    with path.open("w+b") as file:
        assert tail.write_again(file.fileno()) == 0
    assert path.read_bytes().lstrip(b"\0") == b"o\nmore\n"


@pytest.mark.parametrize("num_batches", [2, 12])
@pytest.mark.parametrize(
    "where", ["second write", "index", "index of what waits", "what waits", "waiting write"]
)
def test_no_memory_amid_a_write_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_batches: int, where: str
) -> None:
    """The written part of a batch is taken back, and the same batches are appended by the next call."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    journal = Journal(tmp_path / "events.jsonl")
    kinds = [ev.RoundStarted(rounds=1), ev.LogLine(level="INFO", logger="x", message="y" * 100)]
    batches = batches_of(kinds[n % 2] for n in range(num_batches))
    write, add_batch, num_writes = os.write, LineIndex.add_batch, 0
    failures = iter([MemoryError()] * (1 if where == "what waits" else 2))

    def fail_at_first() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    def write_half(fd: int, data: memoryview) -> int:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 2 and "wait" in where:
            raise OSError(errno.ENOSPC, "No space left on device")
        if (where == "second write" and num_writes > 1) or (where == "waiting write" and num_writes > 3):
            fail_at_first()
        return write(fd, data[: (len(data) + 1) // 2])

    def index_or_fail(index: LineIndex, batch: Batch, offset: int) -> None:
        if where.startswith("index") and batch is batches[1]:
            fail_at_first()
        add_batch(index, batch, offset)

    class Waiting(bytearray):
        def __iadd__(self, data: Any) -> Waiting:
            if where == "what waits":
                fail_at_first()
            return super().__iadd__(data)  # type: ignore[return-value]

    monkeypatch.setattr(journal, "_waiting", Waiting())
    monkeypatch.setattr(os, "write", write_half)
    monkeypatch.setattr(LineIndex, "add_batch", index_or_fail)
    for _ in range(4):
        with contextlib.suppress(MemoryError):
            journal.append(batches)
    assert next(failures, None) is None, "it failed as often as it was to"
    assert (journal.error, journal.lost) == (None, 0)
    assert (tmp_path / "events.jsonl").read_bytes() == b"".join(batch.body for batch in batches)
    of_log = [batch.last for batch in batches if batch.stream == "log"]
    assert [seq for seq, _ in journal.range("log", 1, 99, limit=10**6)] == of_log
    assert journal.last["log"] == of_log[-1]
    journal.close()
