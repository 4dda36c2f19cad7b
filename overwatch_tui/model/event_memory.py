"""The newest events of a live run, compressed in memory: a terminal can go back to what it has seen."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event, decode_line

MAX_MEMORY_BYTES = 16 * 1024 * 1024
"""Compressed: about half an hour of 16 envs at 20 events a second."""
CHUNK_EVENTS = 256


class _Chunk(NamedTuple):
    first: int
    """Position of the line before its first one."""
    packed: bytes


class EventMemory:
    """Lines by their position, 1 the first ever appended; beyond `max_bytes`, compressed, the oldest go."""

    def __init__(self, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunks: deque[_Chunk] = deque()
        self._bytes = 0
        self._open: list[bytes] = []
        self.position = 0
        """Position of the newest line."""

    @property
    def first(self) -> int:
        """The oldest position that `read` can begin after."""
        return self._chunks[0].first if self._chunks else self.position - len(self._open)

    def append(self, event: Event) -> None:
        self._open.append(event.line)
        self.position += 1
        if len(self._open) < CHUNK_EVENTS:
            return
        packed = zlib.compress(b"\n".join(self._open), 1)
        self._chunks.append(_Chunk(self.position - len(self._open), packed))
        self._open = []
        self._bytes += len(packed)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._chunks.popleft().packed)

    def read(self, position: int) -> Iterator[Event]:
        """Events after a position that is held, as far as they are there at the time of the call."""
        chunks, newest = list(self._chunks), list(self._open)
        begin = self.position - len(newest)
        for chunk in chunks:
            if chunk.first + CHUNK_EVENTS > position:
                lines = zlib.decompress(chunk.packed).split(b"\n")
                yield from map(decode_line, islice(lines, max(0, position - chunk.first), None))
        yield from map(decode_line, newest[max(0, position - begin) :])
