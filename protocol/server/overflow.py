"""Spill file for events of `life` that find their queue full."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class OverflowFile:
    """First in, first out, on the disk. Not safe between threads.

    The file has no name, so that nothing is left of it where the process dies.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where the file lies when it is made; None = where temporary files lie."""
        self._fd: int | None = None
        self._lengths: list[int] = []
        """Of the entries that have not been taken, the first at `_begin`."""
        self._taken = 0
        self._begin = self._end = 0

    def __len__(self) -> int:
        return len(self._lengths) - self._taken

    def append(self, data: bytes) -> None:
        """Write an entry.

        Raises:
            OSError: the disk refuses it.
        """
        if self._fd is None:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                self._fd = os.dup(file.fileno())
        at, view = self._end, memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            at, view = at + written, view[written:]
        self._lengths.append(len(data))
        self._end = at

    def take(self, limit: int) -> list[bytes]:
        """Up to `limit` of the oldest entries; an emptied file gives its space back.

        Raises:
            OSError: the disk does not give them.
        """
        lengths = self._lengths[self._taken : self._taken + limit]
        if not lengths or self._fd is None:
            return []
        found, data = [], os.pread(self._fd, sum(lengths), self._begin)
        if len(data) < sum(lengths):
            raise OSError("the file is shorter than what was written")
        for length in lengths:
            found.append(data[:length])
            data = data[length:]
        self._taken += len(lengths)
        self._begin += sum(lengths)
        if not len(self):
            self.close()
        return found

    def close(self) -> None:
        """Forget everything."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._lengths = None, []
        self._taken = self._begin = self._end = 0
