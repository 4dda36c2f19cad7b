"""A run's lock: who trains under this name, and since when.

POSIX record locks (`lockf`), because a forked worker inherits `flock` and keeps it after the daemon's death.
Their price: closing *any* descriptor of the file drops the process's lock, so within a process every look at
a held lock goes through the table of this module instead of opening the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_FLOCK = "hhqqi4x"
"""`struct flock` of Linux: type, whence, start, length, pid."""


@dataclass(frozen=True)
class LockHolder:
    """Holder of a lock; `since` is wall time in microseconds, 0 where it is not known."""

    pid: int
    since: int


class LockHeld(Exception):
    """Another process, or this one, holds the lock."""

    def __init__(self, holder: LockHolder) -> None:
        super().__init__(f"held by pid {holder.pid}")
        self.holder = holder


_held: dict[Path, LockHolder] = {}
_table_lock = threading.Lock()


class Lock:
    """An exclusive lock on `path`, taken now and kept until `release` or the process's end.

    Raises:
        Held: it is taken; says by whom.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        with _table_lock:
            if self.path in _held:
                raise LockHeld(_held[self.path])
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _query_holder(self._fd)
                os.close(self._fd)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise LockHeld(holder or LockHolder(pid=0, since=0)) from None
            _held[self.path] = LockHolder(pid=os.getpid(), since=time.time_ns() // 1000)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(vars(_held[self.path])).encode(), 0)

    def locate(self) -> Path | None:
        """Path of its file now, whoever moved it; None where it was deleted or cannot be found."""
        try:
            if os.fstat(self._fd).st_nlink:
                return Path(os.readlink(f"/proc/self/fd/{self._fd}"))
        except OSError:
            pass
        return None

    def release(self) -> None:
        """Release it; the file stays, for a lock on a deleted file excludes no one."""
        with _table_lock:
            if _held.pop(self.path, None) is not None:
                os.close(self._fd)


def holder_of(path: Path) -> LockHolder | None:
    """Find who holds the lock at `path`, or None; takes nothing, so it never hinders a starting daemon."""
    path = path.resolve()
    with _table_lock:
        if path in _held:
            return _held[path]
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _query_holder(fd)
        finally:
            os.close(fd)


def _query_holder(fd: int) -> LockHolder | None:
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, request))
    if kind == fcntl.F_UNLCK:
        return None
    since = 0
    with contextlib.suppress(ValueError, KeyError, OSError):
        written = json.loads(os.pread(fd, 4096, 0))
        pid, since = pid or int(written["pid"]), int(written["since"])
    return LockHolder(pid=pid, since=since)
