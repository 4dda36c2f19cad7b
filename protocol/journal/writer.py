"""The run's event log: `events.jsonl`, one event a line, the same lines as on the wire.

Written before anything is published, so that what the network loses can be read back. A crash can tear the
last line and nothing else; opening cuts it off and goes on numbering where the last complete line ended, so
that (stream, seq) is unique in a run whatever the number of boots.

A segment that is large or old enough is closed: renamed into `segments/` and compressed there by the thread
of `compactor`. Readers in other processes use `reader`.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from esper_overwatch.protocol.codec.json_lines import Batch
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.storage.folders import sync_folder

from .compactor import Compactor
from .line_files import LineIndex, begin_of, read_blocks, repair, select_lines
from .segments import SegmentFolder
from .unsynced import UnsyncedTail

logger = logging.getLogger(__name__)

MAX_SCAN_BYTES = 4 * 1024 * 1024
MAX_WAITING_BYTES = 16 * 1024 * 1024
MAX_SINGLE_WRITES = 8
"""Batches that are written one by one; more, which are small, are joined."""
_RETRY_SECONDS = 1.0
_ROTATE_RETRY_SECONDS = 60.0


@dataclass(frozen=True)
class JournalLimits:
    """Limits at which a segment is closed, and of the closed segments that are kept."""

    segment_bytes: int = 64 * 1024 * 1024
    segment_seconds: float = 3600.0
    """Since it was begun, or opened again, at which a segment is closed."""
    keep_bytes: int = 0
    """For the compressed segments together, the oldest go; 0 = all are kept."""


DEFAULT_LIMITS = JournalLimits()


class FsyncThread:
    """A thread for fdatasync, one at a time: a disk can take 100 ms and more. One thread owns it."""

    def __init__(self) -> None:
        self._files: SimpleQueue[int | None] = SimpleQueue()
        self.answers: SimpleQueue[OSError | None] = SimpleQueue()
        """One of the disk's for each `begin`; None = all is well."""
        threading.Thread(target=self._main, name="esper-sync", daemon=True).start()

    def begin(self, fd: int) -> None:
        """Bring a file onto the disk, not to be closed before the disk has answered."""
        self._files.put(fd)

    def close(self) -> None:
        """End the thread when it is done."""
        self._files.put(None)

    def _main(self) -> None:
        while (fd := self._files.get()) is not None:
            try:
                os.fdatasync(fd)
            except OSError as error:
                self.answers.put(error)
            else:
                self.answers.put(None)


class Journal:
    """Append and range read. One thread owns it.

    Opening repairs a torn tail: `cut` says how many bytes went.

    Args:
        path: of the hot segment.
        limits: of the segments.

    Raises:
        FolderError: the file, or a segment, cannot be opened.
    """

    def __init__(self, path: Path, limits: JournalLimits = DEFAULT_LIMITS) -> None:
        self.path = path
        self.limits = limits
        self.errors = 0
        self.error: str | None = None
        """The disk's current error; None while it takes everything."""
        self.is_full = False
        """True if the disk, or the user's share of it, has no room left."""
        self.lost = 0
        """Events that could not be kept while the disk refused."""
        self._waiting = bytearray()
        self._retry_at = 0.0
        self._rotate_at = 0.0
        self._began = time.monotonic()
        self._is_dirty = self._is_sync_asked = self._is_unsynced = False
        self._is_syncing = False
        """True until the answer to the newest fdatasync was looked at."""
        self._is_written_again = False
        """True while a sync is on the way of what the one before has failed on."""
        self.synced = self._syncs = 0
        """The newest ticket of `sync` that the disk has confirmed; how many were begun."""
        self._folder = SegmentFolder(path)
        self._index = LineIndex()
        try:
            self._compactor = Compactor(self._folder, keep_bytes=limits.keep_bytes)
            self._fd = _open(path)
            sync_folder(path.parent)
            self.cut = repair(self._fd)
            self.bytes = os.fstat(self._fd).st_size
            self._unsynced = UnsyncedTail(self.bytes)
            self._index.scan(read_blocks(self._fd, 0, self.bytes))
        except OSError as error:
            raise FolderError(f"cannot open the journal {path}: {error.strerror}") from None
        self.last = {**self._compactor.last, **self._index.last}
        """The newest sequence number per stream, over all boots."""
        if self.cut:
            logger.warning("journal %s: cut %d bytes of a torn last line", path, self.cut)
        self.removed = self._compactor.removed
        """Segments that retention has taken, for the owner to report and take out."""
        self._compactor.resume()
        self._fsync = FsyncThread()

    @property
    def waiting(self) -> int:
        """Bytes that the disk has not taken yet."""
        return len(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Events that the disk has not taken yet; counted line by line."""
        return self._waiting.count(b"\n")

    def append(self, batches: Sequence[Batch]) -> None:
        """Write events in one go; a disk that refuses sets `error` and is asked again each second.

        What has been taken before is left out: a call that failed half-way may be repeated.
        """
        batches = [batch for batch in batches if batch.first > self.last.get(batch.stream, 0)]
        self._continue_fsync()
        if self.error is not None and time.monotonic() >= self._retry_at:
            self._write_waiting()
        if self._is_rotation_due():
            self.rotate()
        kept = batches if self.error is None else self._fit_into_memory(batches)
        single = [[batch] for batch in kept]
        for part in single if len(kept) <= MAX_SINGLE_WRITES else [kept]:
            self._append_part(part)
        self.lost += sum(map(len, batches[len(kept) :]))

    def _append_part(self, batches: Sequence[Batch]) -> None:
        """All of these, or none where there is no memory for it: the caller has them still."""
        data = batches[0].body if len(batches) == 1 else b"".join([batch.body for batch in batches])
        begin = self.bytes + len(self._waiting)
        try:
            taken = 0 if self.error is not None else self._write_bytes(data)
            if taken < len(data):
                self._waiting += data[taken:]
            offset = begin
            for batch in batches:
                self._index.add_batch(batch, offset)
                offset += len(batch.body)
        except MemoryError:
            self._take_back(begin)
            raise
        for batch in batches:
            self.last[batch.stream] = batch.last

    def _take_back(self, begin: int) -> None:
        """Drop what was taken behind `begin`, counted over the file and what waits."""
        del self._waiting[max(0, begin - self.bytes) :]
        if begin < self.bytes:
            os.ftruncate(self._fd, begin)
            self.bytes = begin
            self._unsynced.cut(begin)

    def _fit_into_memory(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """While the disk refuses: those for which there is room in memory; the others are lost."""
        room = MAX_WAITING_BYTES - len(self._waiting)
        for count, batch in enumerate(batches):
            room -= len(batch.body)
            if room < 0:
                return batches[:count]
        return batches

    def sync(self) -> int | None:
        """Have what was written brought onto the disk soon; `append` takes note of what became of it.

        Returns:
            The ticket of what has been appended: it is on the disk when `synced` is that far. None where some
            of it waits for a disk that refuses.
        """
        self._is_sync_asked = True
        self._continue_fsync()
        return None if self._waiting or self._is_unsynced else self._syncs + self._is_dirty

    def _continue_fsync(self) -> None:
        if self._is_syncing and self._fsync.answers.empty():
            return
        self._note_fsync_result()
        if self._is_sync_asked and self._is_dirty and (not self._is_unsynced or self._is_written_again):
            self._is_sync_asked = self._is_dirty = False
            self._syncs += 1
            self._unsynced.ask()
            self._is_syncing = True
            self._fsync.begin(self._fd)

    def _note_fsync_result(self) -> None:
        """Wait for the newest fdatasync, and take note of what became of it, once."""
        if not self._is_syncing:
            return
        error = self._fsync.answers.get()
        self._is_syncing = self._is_written_again = False
        if error is not None:
            self._is_unsynced = True
            self._note_failure(error)
            return
        self.synced = self._syncs
        self._unsynced.confirm()
        if self._is_unsynced:
            self._is_unsynced = False
            self._note_recovery()

    def _write_again(self) -> None:
        """Write what a sync has failed on once more; another sync would not write it."""
        if not self._is_unsynced or self._is_written_again:
            return
        try:
            self.lost += self._unsynced.write_again(self._fd)
        except OSError as error:
            self._note_failure(error)
        else:
            self._is_written_again = self._is_dirty = True

    def _sync_and_wait(self) -> None:
        """Bring what was written onto the disk before the file goes."""
        for _ in range(2):  # what the first attempt fails on is written once more
            self._note_fsync_result()
            self._write_again()
            self._is_sync_asked = True
            self._continue_fsync()
        self._note_fsync_result()

    def close(self) -> None:
        """Last attempt at what waits, sync, close; a second call does nothing."""
        if self._fd < 0:
            return
        if self._waiting:
            self._write_waiting()
        self._sync_and_wait()
        self._fsync.close()
        os.close(self._fd)
        self._fd = -1
        self._compactor.close()

    def range(self, stream: str, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        """Lines `first`..`last` of a stream as (seq, line), up to `limit` bytes of them.

        May give fewer than asked for (ask again from the next), and starts later than `first` where the file
        does not hold it.

        Raises:
            OSError: the disk refused to read.
        """
        for number, start in self._segments_reaching(stream, first):
            if start > last:
                return []
            found = self._range_of_segment(number, stream, first, last, limit)
            if found:
                return found
        begin = begin_of(self._index.entries.get(stream, []), first)
        if begin is None:
            return []
        end = min(self.bytes, begin + MAX_SCAN_BYTES)
        return select_lines(read_blocks(self._fd, begin, end), stream, first, last, limit=limit)

    def _segments_reaching(self, stream: str, first: int) -> Iterator[tuple[int, int]]:
        """(segment, its first number of the stream) of those that reach `first`, the oldest first."""
        pending = dict(self._compactor.pending)
        streams = {segment.number: segment.streams for segment in self._compactor.manifest.segments}
        streams |= {number: index.spans for number, index in pending.items()}
        for number, spans in sorted(streams.items()):
            if stream in spans and spans[stream].last >= first:
                yield number, spans[stream].first

    def _range_of_segment(
        self, number: int, stream: str, first: int, last: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Read from a closed segment; empty if retention has just taken it."""
        index = self._compactor.pending.get(number)
        try:
            if index is not None:
                begin = begin_of(index.entries[stream], first)
                with self._folder.raw(number).open("rb") as file:
                    blocks = read_blocks(file.fileno(), begin or 0, (begin or 0) + MAX_SCAN_BYTES)
                    return select_lines(blocks, stream, first, last, limit=limit)
        except FileNotFoundError:
            pass
        try:
            return self._folder.range(number, stream, first, last, limit=limit, scan=MAX_SCAN_BYTES)
        except FileNotFoundError:
            return []

    def rotate(self) -> int:
        """Close the hot segment and begin a new one; without a line in it, or on a sick disk, nothing.

        Returns:
            Bytes of the segment that was closed.
        """
        if not self._index.entries or self._waiting or self.error is not None:
            return 0
        self._sync_and_wait()
        if self.error is not None:
            return 0
        number = self._compactor.newest + 1
        try:
            fd = self._rename(self._folder.raw(number))
        except OSError as error:
            self._rotate_at = time.monotonic() + _ROTATE_RETRY_SECONDS
            logger.error("journal %s: no new segment can be begun: %s", self.path, error.strerror)
            return 0
        os.close(self._fd)
        closed = self.bytes
        self._fd, self.bytes, self._began, self._unsynced = fd, 0, time.monotonic(), UnsyncedTail(0)
        index, self._index = self._index, LineIndex()
        try:
            sync_folder(self._folder.path)
            sync_folder(self.path.parent)
        except OSError as error:
            self._note_failure(error)
        self._compactor.take(number, index)
        return closed

    def _rename(self, closed: Path) -> int:
        """Give the hot segment its closed name; returns the descriptor of the new hot one."""
        closed.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(self.path, closed)
        try:
            return _open(self.path)
        except OSError:
            os.replace(closed, self.path)
            raise

    @property
    def segments(self) -> dict[str, int | str | None]:
        """Closed segments: how many, their bytes on the disk, how many wait, why compressing failed last."""
        compactor = self._compactor
        return {
            "closed": len(compactor.manifest.segments) + len(compactor.pending),
            "compressed_bytes": compactor.bytes,
            "not_compressed": len(compactor.pending),
            "error": compactor.error,
        }

    def _is_rotation_due(self) -> bool:
        """True if the hot segment is large or old enough to be closed."""
        if time.monotonic() < self._rotate_at:
            return False
        if self.bytes >= self.limits.segment_bytes:
            return True
        old = time.monotonic() - self._began >= self.limits.segment_seconds
        return old and bool(self._index.entries)

    def _write_waiting(self) -> None:
        """Offer the disk what waits, and what it has failed to keep."""
        self._write_again()
        before = self.bytes
        try:
            self._write_bytes(bytes(self._waiting))
        finally:
            del self._waiting[: self.bytes - before]
        self._is_sync_asked = self._is_sync_asked or self._is_unsynced
        self._note_recovery()

    def _note_recovery(self) -> None:
        if self.error is not None and not self._waiting and not self._is_unsynced:
            logger.warning("journal %s: the disk takes events again; %d were lost", self.path, self.lost)
            self.error = None

    def _write_bytes(self, data: bytes | bytearray) -> int:
        """Write what nobody changes any more, and return how many bytes the disk took.

        If not all, it said why.
        """
        taken, view = 0, memoryview(data)
        try:
            while taken < len(view):
                rest = view[taken:]
                written = os.write(self._fd, rest)
                taken += written
                self.bytes += written
                self._is_dirty = True
                self._unsynced.append(rest[:written])
        except OSError as error:
            self._note_failure(error)
        return taken

    def _note_failure(self, error: OSError) -> None:
        self.errors += 1
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        if self.error is None:
            logger.error("journal %s: %s; events are kept in memory meanwhile", self.path, error.strerror)
        self.error = error.strerror or str(error)
        self.is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
