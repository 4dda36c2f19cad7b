"""A run's lock: who trains under this name, and since when.

Open file description locks: a process that closes another descriptor of the file, as one does that copies the
folder, keeps its lock. A forked child would hold it beyond its parent's death, and closes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import time
import weakref
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
        moment = time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(holder.since / 1e6))
        super().__init__(f"held by pid {holder.pid} since {moment if holder.since else 'an unknown time'}")
        self.holder = holder


class Lock:
    """An exclusive lock on `path`, taken now and kept until `release` or the process's end.

    Raises:
        LockHeld: it is taken; says by whom.
        OSError: the file cannot be made, or is a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = _place(path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock_request())
        except OSError as error:
            holder = _query_holder(self._fd)
            os.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise LockHeld(holder or LockHolder(pid=0, since=0)) from None
        _locks.add(self)
        holder = LockHolder(pid=os.getpid(), since=time.time_ns() // 1000)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(vars(holder)).encode(), 0)

    @property
    def is_deleted(self) -> bool:
        """True once its file has no name any more."""
        try:
            return os.fstat(self._fd).st_nlink == 0
        except OSError:
            return False

    def locate(self) -> Path | None:
        """Path of its file now, whoever moved it; None where it was deleted or cannot be found."""
        with contextlib.suppress(OSError):
            return None if self.is_deleted else Path(os.readlink(f"/proc/self/fd/{self._fd}"))
        return None

    @property
    def is_in_place(self) -> bool:
        """False where the path leads to another file now, or to none."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Release it; the file stays, for a lock on a deleted file excludes no one."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_release_all)


def holder_of(path: Path) -> LockHolder | None:
    """Find who holds the lock at `path`, or None; takes nothing, so it never hinders a starting daemon."""
    try:
        fd = os.open(_place(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _query_holder(fd)
    finally:
        os.close(fd)


def _place(path: Path) -> Path:
    """The same file by a path that stays good where the current folder changes; a link is not followed."""
    return path.parent.resolve() / path.name


def lock_request() -> bytes:
    """`struct flock` for an exclusive lock on a whole file."""
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _query_holder(fd: int) -> LockHolder | None:
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, lock_request()))
    if kind == fcntl.F_UNLCK:
        return None
    pid, since = max(pid, 0), 0  # -1: not a process holds it, but an open file
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError, OSError):
        written = json.loads(os.pread(fd, 4096, 0))
        pid, since = pid or int(written["pid"]), int(written["since"])
    return LockHolder(pid=pid, since=since)
