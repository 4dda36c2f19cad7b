"""Files of lines: where a line is found, how one is read from either end, how a torn tail is cut off."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from msgspec import Struct

from esper_overwatch.protocol.codec.json_lines import LINE_PREFIX, Batch, decode_line
from esper_overwatch.protocol.errors import WireError

INDEX_EVENTS = 256
INDEX_BYTES = 256 * 1024
BLOCK_BYTES = 128 * 1024
HEAD_BYTES = 160
"""The type of an event stands within the first bytes of its line."""
MAX_LINE_BYTES = 16 * 1024 * 1024
"""A longer line is no event: it is passed over from behind, and cut from the front."""
_TAIL_BLOCK_BYTES = 64 * 1024


class Span(Struct, frozen=True):
    """Numbers of one stream in a segment."""

    first: int
    last: int


class LineIndex:
    """Offsets of lines in a segment: the first of each stream, then about one in 256 or in 256 KiB."""

    def __init__(self) -> None:
        self.entries: dict[str, list[tuple[int, int]]] = {}
        """Per stream (seq, offset of its line), ascending."""
        self.last: dict[str, int] = {}
        self.from_ts = 0
        """Time of the first line, microseconds; 0 while there is none."""
        self.to_ts = 0

    @property
    def spans(self) -> dict[str, Span]:
        """The first number and the last, per stream."""
        return {stream: Span(entries[0][0], self.last[stream]) for stream, entries in self.entries.items()}

    def add_line(self, stream: str, seq: int, ts: int, offset: int) -> None:
        """Take in the next line."""
        entries = self.entries.get(stream)
        if entries is None:
            entries = self.entries[stream] = []
        if not entries or seq - entries[-1][0] >= INDEX_EVENTS or offset - entries[-1][1] >= INDEX_BYTES:
            entries.append((seq, offset))
        if seq > self.last.get(stream, 0):
            self.last[stream] = seq
        if not self.from_ts:
            self.from_ts = ts
        self.to_ts = ts

    def add_batch(self, batch: Batch, offset: int) -> None:
        """Take in the next lines; the first, at `offset`, stands for all of them."""
        self.add_line(batch.stream, batch.first, batch.from_ts, offset)
        self.last[batch.stream] = batch.last
        self.to_ts = batch.to_ts

    def scan(self, blocks: Iterable[bytes]) -> None:
        """Take in a segment from its beginning; a last line without its newline is left out."""
        offset, carry = 0, b""
        for block in blocks:
            data = carry + block
            complete = data.rfind(b"\n") + 1
            position = 0
            while position < complete:
                head = LINE_PREFIX.match(data, position)
                if head is not None and head[3] is not None:
                    self.add_line(head[2].decode(), int(head[1]), int(head[3]), offset + position)
                position = data.index(b"\n", position) + 1
            offset += complete
            carry = data[complete:]


def begin_of(entries: list[tuple[int, int]], first: int) -> int | None:
    """The offset from which to look for line `first`; None where the stream has no line."""
    at = bisect.bisect_left(entries, (first + 1, 0))
    return entries[max(0, at - 1)][1] if entries else None


def select_lines(
    blocks: Iterable[bytes], stream: str, first: int, last: int, *, limit: int
) -> list[tuple[int, bytes]]:
    """Lines `first`..`last` of a stream as (seq, line), up to `limit` bytes of them."""
    found: list[tuple[int, bytes]] = []
    name, carry = stream.encode(), b""
    for block in blocks:
        lines = (carry + block).split(b"\n")
        carry = lines.pop()
        for line in lines:
            head = LINE_PREFIX.match(line)
            if head is None or head[2] != name or int(head[1]) < first:
                continue
            if int(head[1]) > last:
                return found
            found.append((int(head[1]), line))
            limit -= len(line) + 1
            if limit <= 0:
                return found
    return found


def read_blocks(fd: int, begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a file from `begin` to `end`."""
    while begin < end and (block := os.pread(fd, min(BLOCK_BYTES, end - begin), begin)):
        yield block
        begin += len(block)


def lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    """A file in pieces of complete lines, the newest first; a last line without its newline is left out."""
    end = file.seek(0, os.SEEK_END)
    carry: bytes | None = None
    while end > 0:
        begin = max(0, end - _TAIL_BLOCK_BYTES)
        file.seek(begin)
        data = file.read(end - begin)
        end = begin
        if carry is None:
            complete = data.rfind(b"\n") + 1
            if not complete:
                continue
            data, carry = data[:complete], b""
        data += carry
        newline = (data.find(b"\n") + 1 or len(data)) if begin else 0
        carry, piece = data[:newline], data[newline:]
        if len(carry) > MAX_LINE_BYTES:
            carry = None  # up to the next newline
        if piece:
            yield piece
    if carry:
        yield carry


def repair(fd: int) -> int:
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
    """Offset of the line that ends at `end` (its own newline, if any, does not count)."""
    position = end - 1
    while position > 0:
        begin = max(0, position - _TAIL_BLOCK_BYTES)
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
