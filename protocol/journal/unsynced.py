"""The end of a file that the disk has not confirmed, kept to be written once more where it fails."""

from __future__ import annotations

import os
from collections import deque

MAX_KEPT_BYTES = 16 * 1024 * 1024
"""What a disk is behind with beyond that is not kept, and counts as lost where its sync fails."""


class UnsyncedTail:
    """The bytes appended to a file since the last sync that went well.

    After a sync that fails Linux takes the pages for clean: another sync does not write them, and says that
    all is well (Rebello et al., "Can applications recover from fsync failures?", 2020). So they are written
    again.

    Args:
        size: of the file, all of which counts as synced.
    """

    def __init__(self, size: int) -> None:
        self._begin = self._end = size
        self._kept: deque[memoryview] = deque()
        """From `_begin` to `_end`: views of batches, since a copy costs as much as a write."""
        self._asked = self._lines = 0
        """How many of these a sync is on the way of; lines that were not kept."""

    def append(self, data: memoryview) -> None:
        """Note what was written at the file's end; nobody changes it from now on."""
        self._kept.append(data)
        self._end += len(data)
        if self._end - self._begin > MAX_KEPT_BYTES:
            self._lines += sum(bytes(piece).count(b"\n") for piece in self._kept)
            self._begin, self._asked = self._end, 0
            self._kept.clear()

    def cut(self, size: int) -> None:
        """Note that the file was cut to that size; what comes then is not of the sync that is on its way."""
        while self._kept and self._end > size:
            piece = self._kept.pop()
            self._end -= len(piece)
            if self._end < size:
                self.append(piece[: size - self._end])
        self._begin, self._end = min(self._begin, size), min(self._end, size)
        self._asked = min(self._asked, len(self._kept))

    def ask(self) -> None:
        """Note that a sync has begun, of all that there is."""
        self._asked = len(self._kept)

    def confirm(self) -> None:
        """Note that this sync went well."""
        for _ in range(min(self._asked, len(self._kept))):
            self._begin += len(self._kept.popleft())
        self._asked = self._lines = 0

    def write_again(self, fd: int) -> int:
        """Write it to the file where it was.

        Args:
            fd: of the file, which may have been opened for appending.

        Returns:
            Lines that were not kept, which may be on the disk or not.

        Raises:
            OSError: the disk refuses.
        """
        again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            at = self._begin
            for piece in self._kept:
                while piece:
                    done = os.pwrite(again, piece, at)
                    at, piece = at + done, piece[done:]
        finally:
            os.close(again)
        lost, self._lines = self._lines, 0
        return lost
