"""The end of a file that the disk has not confirmed, kept to be written once more where it fails."""

from __future__ import annotations

import os

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
        self._begin = self._asked = size
        self._kept = bytearray()
        self._lines = 0
        """Lines that were not kept."""

    def append(self, data: memoryview) -> None:
        """Note what was written at the file's end."""
        self._kept += data
        if len(self._kept) > MAX_KEPT_BYTES:
            self._begin += len(self._kept)
            self._lines += self._kept.count(b"\n")
            self._kept.clear()

    def cut(self, size: int) -> None:
        """Note that the file was cut to that size."""
        del self._kept[max(0, size - self._begin) :]
        self._begin = min(self._begin, size)

    def ask(self) -> None:
        """Note that a sync has begun, of all that there is."""
        self._asked = self._begin + len(self._kept)

    def confirm(self) -> None:
        """Note that this sync went well."""
        count = max(0, self._asked - self._begin)
        del self._kept[:count]
        self._begin += count
        self._lines = 0

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
            done = 0
            while done < len(self._kept):
                done += os.pwrite(again, memoryview(self._kept)[done:], self._begin + done)
        finally:
            os.close(again)
        lost, self._lines = self._lines, 0
        return lost
