"""Bringing a file onto the disk without waiting for it.

fdatasync takes milliseconds, on a busy disk hundreds of them, and no client would get an
answer meanwhile: it has a thread of its own.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue


class FsyncThread:
    """One fdatasync at a time. One thread owns it."""

    def __init__(self) -> None:
        self._files: SimpleQueue[int | None] = SimpleQueue()
        self._error: OSError | None = None
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._main, name="esper-sync", daemon=True).start()

    @property
    def busy(self) -> bool:
        """True until the disk has answered."""
        return not self._idle.is_set()

    def begin(self, fd: int) -> None:
        """Bring a file onto the disk; not while it is `busy`, and the file is not to be closed before."""
        self._idle.clear()
        self._files.put(fd)

    def wait(self) -> None:
        """Until the disk has answered."""
        self._idle.wait()

    def take_error(self) -> OSError | None:
        """Return the error since the last call, if the disk refused anything."""
        error, self._error = self._error, None
        return error

    def close(self) -> None:
        """End the thread when it is done."""
        self._files.put(None)

    def _main(self) -> None:
        while (fd := self._files.get()) is not None:
            try:
                os.fdatasync(fd)
            except OSError as error:
                self._error = error
            self._idle.set()
