"""The run's event log: `events.jsonl`, one event a line, the same lines as on the wire.

Written before anything is published, so that what the network loses can be read back. A crash can tear the
last line and nothing else; opening cuts it off and goes on numbering where the last complete line ended, so
that (stream, seq) is unique in a run whatever the number of boots.
"""

from __future__ import annotations

import bisect
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import FolderError
from .events import RunStopped
from .wire import LINE_HEAD, Event, Stamped, WireError, decode_line

logger = logging.getLogger(__name__)

INDEX_EVENTS = 256
INDEX_BYTES = 256 * 1024
SCAN_BYTES = 4 * 1024 * 1024
WAITING_BYTES = 16 * 1024 * 1024
_RETRY_S = 1.0
_BLOCK = 1024 * 1024
_TAIL_BLOCK = 64 * 1024


class Journal:
    """Append and range read. One thread owns it.

    Opening repairs a torn tail: `cut` says how many bytes went.

    Raises:
        FolderError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: dict[str, int] = {}
        """The newest sequence number per stream, over all boots."""
        self.errors = 0
        self.error: str | None = None
        """What the disk says now; None while it takes everything."""
        self.lost = 0
        """Events that could not be kept while the disk refused."""
        self._index: dict[str, list[tuple[int, int]]] = {}
        self._waiting = bytearray()
        self._retry_at = 0.0
        self._dirty = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self.cut = _repair(self._fd)
            self.bytes = os.fstat(self._fd).st_size
            self._scan()
        except OSError as error:
            raise FolderError(f"cannot open the journal {path}: {error.strerror}") from None
        if self.cut:
            logger.warning("journal %s: cut %d bytes of a torn last line", path, self.cut)

    @property
    def waiting(self) -> int:
        """Bytes that the disk has not taken yet."""
        return len(self._waiting)

    def append(self, stamped: Sequence[Stamped]) -> None:
        """Write events in one go; a disk that refuses sets `error` and is asked again each second."""
        if self.error is not None and time.monotonic() >= self._retry_at:
            self._write()
        offset = self.bytes + len(self._waiting)
        for count, item in enumerate(stamped):
            size = len(item.line) + 1
            if len(self._waiting) + size > WAITING_BYTES and self.error is not None:
                self.lost += len(stamped) - count
                break
            self._waiting += item.line
            self._waiting += b"\n"
            self._note(item.stream, item.seq, offset)
            self.last[item.stream] = item.seq
            offset += size
        if self._waiting and self.error is None:
            self._write()

    def sync(self) -> None:
        """Bring what was written onto the disk."""
        if not self._dirty:
            return
        try:
            os.fdatasync(self._fd)
            self._dirty = False
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Last attempt at what waits, sync, close; again is nothing."""
        if self._fd < 0:
            return
        if self._waiting:
            self._write()
        self.sync()
        os.close(self._fd)
        self._fd = -1

    def range(self, stream: str, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        """Lines `first`..`last` of a stream as (seq, line), up to `limit` bytes of them.

        May give fewer than asked for (ask again from the next), and starts later than `first` where the file
        does not hold it.

        Raises:
            OSError: the disk refused to read.
        """
        entries = self._index.get(stream, [])
        at = bisect.bisect_right(entries, (first, self.bytes))
        offset = entries[at - 1][1] if at else (entries[0][1] if entries else self.bytes)
        found: list[tuple[int, bytes]] = []
        end = min(self.bytes, offset + SCAN_BYTES)
        carry = b""
        name = stream.encode()
        while offset < end and limit > 0:
            block = os.pread(self._fd, min(_BLOCK, self.bytes - offset), offset)
            if not block:
                break
            offset += len(block)
            lines = (carry + block).split(b"\n")
            carry = lines.pop()
            for line in lines:
                head = LINE_HEAD.match(line)
                if head is None or head[2] != name or int(head[1]) < first:
                    continue
                if int(head[1]) > last or limit <= 0:
                    return found
                found.append((int(head[1]), line))
                limit -= len(line) + 1
        return found

    def _write(self) -> None:
        try:
            while self._waiting:
                written = os.write(self._fd, self._waiting)
                del self._waiting[:written]
                self.bytes += written
                self._dirty = True
        except OSError as error:
            self._failed(error)
            return
        if self.error is not None:
            logger.warning("journal %s: the disk takes events again; %d were lost", self.path, self.lost)
            self.error = None

    def _failed(self, error: OSError) -> None:
        self.errors += 1
        self._retry_at = time.monotonic() + _RETRY_S
        if self.error is None:
            logger.error("journal %s: %s; events are kept in memory meanwhile", self.path, error.strerror)
        self.error = error.strerror or str(error)

    def _note(self, stream: str, seq: int, offset: int) -> None:
        entries = self._index.setdefault(stream, [])
        if not entries or seq - entries[-1][0] >= INDEX_EVENTS or offset - entries[-1][1] >= INDEX_BYTES:
            entries.append((seq, offset))

    def _scan(self) -> None:
        """Rebuild the index and the last numbers from the file."""
        offset, carry = 0, b""
        while (rest := self.bytes - offset - len(carry)) > 0:
            block = os.pread(self._fd, min(_BLOCK, rest), offset + len(carry))
            if not block:
                break
            data = carry + block
            complete = data.rfind(b"\n") + 1
            position = 0
            while position < complete:
                head = LINE_HEAD.match(data, position)
                if head is not None:
                    stream, seq = head[2].decode(), int(head[1])
                    self._note(stream, seq, offset + position)
                    self.last[stream] = max(seq, self.last.get(stream, 0))
                position = data.index(b"\n", position) + 1
            offset += complete
            carry = data[complete:]


def _repair(fd: int) -> int:
    """Cut the file after its last complete, valid line; returns the bytes cut."""
    size = os.fstat(fd).st_size
    end = size
    while end:
        begin = _line_start(fd, end)
        line = os.pread(fd, end - begin, begin)
        if line.endswith(b"\n") and _valid(line[:-1]):
            break
        end = begin
    if end < size:
        os.ftruncate(fd, end)
        os.fdatasync(fd)
    return size - end


def _line_start(fd: int, end: int) -> int:
    """Where the line that ends at `end` begins (its own newline, if any, does not count)."""
    position = end - 1
    while position > 0:
        begin = max(0, position - _TAIL_BLOCK)
        newline = os.pread(fd, position - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        position = begin
    return 0


def _valid(line: bytes) -> bool:
    try:
        decode_line(line)
    except WireError:
        return False
    return True


def read(path: Path, *, on_bad: Callable[[int, WireError], None] | None = None) -> Iterator[Event]:
    """Events of a journal, in the order written; a last line still being written is left out.

    Args:
        path: of `events.jsonl`, live or not.
        on_bad: called with line number and error for a line that is no event; without it that is raised.

    Raises:
        WireError: a line is damaged; says which.
        FolderError: the file cannot be read.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise FolderError(f"cannot read the journal {path}: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                event = decode_line(line[:-1])
            except WireError as error:
                if on_bad is None:
                    raise WireError(f"{path}, line {number}: {error}") from None
                on_bad(number, error)
                continue
            yield event


def newest_lines(path: Path, *, limit: int = 8 * 1024 * 1024) -> list[tuple[str, int, bytes]]:
    """The lines in the last `limit` bytes of a journal, as (stream, seq, line); none where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    heads = ((LINE_HEAD.match(line), line) for line in lines[:-1])
    return [(head[2].decode(), int(head[1]), line) for head, line in heads if head]


@dataclass(frozen=True)
class LastWords:
    """What a journal's tail says of the run."""

    ts: int
    round: int
    epoch: int
    state: str | None
    """The newest `run.state`, or None where the tail that was read has none."""
    stopped: RunStopped | None
    """Set where the last boot ended in order."""


def last_words(path: Path, *, limit: int = 4 * 1024 * 1024) -> LastWords | None:
    """Read the tail of a journal, back to the newest `run.state`; None where there is no event."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        newest: Event | None = None
        stopped: RunStopped | None = None
        end = os.fstat(fd).st_size
        floor = end - limit
        while end > max(0, floor):
            begin = _line_start(fd, end)
            line = os.pread(fd, end - begin, begin)
            end = begin
            if newest is not None and b'"type":"run.' not in line[:128]:
                continue
            try:
                event = decode_line(line.rstrip(b"\n"))
            except WireError:
                continue
            newest = newest or event
            if event.type == "run.started":
                return _words(newest, "STARTING", stopped)
            if event.type == "run.state":
                return _words(newest, event.data.state, stopped)
            if event.type == "run.stopped" and stopped is None:
                stopped = event.data
        return None if newest is None else _words(newest, None, stopped)
    finally:
        os.close(fd)


def _words(newest: Event, state: str | None, stopped: RunStopped | None) -> LastWords:
    return LastWords(newest.ts, newest.ctx.round, newest.ctx.epoch, state, stopped)
