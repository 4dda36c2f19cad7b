"""The daemon's Unix sockets and the file that says where they are; both are made again where they vanish.

The folder of the sockets may go while the daemon lives: systemd removes `/run/user/UID` when the user logs
out for the last time, unless `loginctl enable-linger` was called. Then they move to where a daemon would have
them that starts now.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket as system
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import zmq

from esper_overwatch.protocol.codec.zmq_options import ZmqContext
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.messages.vocabulary import RunState
from esper_overwatch.protocol.runs import Connection, RunFolder
from esper_overwatch.protocol.storage.folders import write_atomically
from esper_overwatch.protocol.storage.lock import Lock, LockHeld
from esper_overwatch.protocol.version import PROTOCOL_VERSION, __version__

from . import sockets

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
MAX_RESERVED_FILES = 1024
"""File numbers that stay free of local connections, or a quarter of those that the process may have."""


class LocalSockets:
    """`ev`, `qry` and `ctl` of one boot. One thread owns it, after `open`.

    Args:
        run: whose sockets they are.
        boot: id of the boot.
        started: when it began, microseconds.
        state: the run's, for the connection file.

    Attributes:
        rebound: how many times a socket was bound again.
    """

    def __init__(
        self,
        run: RunFolder,
        boot: str,
        started: int,
        state: Callable[[], RunState | None] = lambda: None,
    ) -> None:
        self._run = run
        self._state = state
        self._told_state: RunState | None = None
        self._boot = boot
        self._started = started
        self._paths: dict[str, Path] = {}
        self._inodes: dict[str, tuple[int, int]] = {}
        self._check_at = 0.0
        self._is_shut = False
        self._lock: Lock | None = None
        self.rebound = 0

    def open(self, context: ZmqContext) -> None:
        """Bind the three sockets.

        Raises:
            FolderError: the folder cannot be used, or a socket cannot be bound.
        """
        folder = self._lock_folder()
        self.ev = sockets.make_publisher(context)
        self.qry = sockets.make_router(context)
        self.ctl = sockets.make_router(context)
        self.ctl.set(zmq.IPC_FILTER_UID, os.getuid())
        for name in ("ev", "qry", "ctl"):
            self._bind(name, folder / name)

    def _lock_folder(self) -> Path:
        """The folder for the sockets, held: a copied run has the same, and a lock of its own."""
        folder = self._run.socket_folder()
        if self._lock is not None and self._lock.is_in_place and self._lock.path.parent == folder.resolve():
            return folder
        try:
            lock = Lock(folder / "lock")
        except LockHeld as held:
            raise FolderError(
                f"run {self._run.name} and the live run of pid {held.holder.pid} have one id, {self._run.id},"
                " as copies of a folder do; stop that one first, or begin a new run with --fork"
            ) from None
        except OSError as error:
            raise FolderError(f"cannot lock {folder / 'lock'}: {error.strerror}") from None
        self._release_lock()
        self._lock = lock
        return folder

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _bind(self, name: str, path: Path) -> None:
        """The file of a daemon that died is removed, which the folder's lock makes safe."""
        socket: zmq.Socket[bytes] = getattr(self, name)
        try:
            path.unlink(missing_ok=True)
            socket.bind(f"ipc://{path}")
            path.chmod(0o600)  # its folder is 0700, so that nobody was let in meanwhile
            status = path.lstat()
        except (zmq.ZMQError, OSError) as error:
            raise FolderError(f"cannot open the socket {path}: {error.strerror}") from None
        self._paths[name] = path
        self._inodes[name] = status.st_dev, status.st_ino

    @property
    def endpoints(self) -> dict[str, str]:
        """Current addresses of the sockets, by name."""
        return {name: f"ipc://{path}" for name, path in self._paths.items()}

    def write_connection(self) -> None:
        """Write the file by which clients find the sockets.

        Raises:
            FolderError: the disk refused.
        """
        state = self._state()
        connection = Connection(
            v=PROTOCOL_VERSION,
            run=self._run.id,
            name=self._run.name,
            boot=self._boot,
            pid=os.getpid(),
            starttime=int(psutil.Process().create_time() * 1e6),
            started=self._started,
            endpoints=self.endpoints,
            host=system.gethostname(),
            version=__version__,
            state=state,
        )
        write_atomically(self._run.connection, msgspec.json.format(msgspec.json.encode(connection)))
        self._told_state = state

    def guard_file_numbers(self) -> None:
        """Let nobody new in while few file numbers are left; connections that are open stay so.

        libzmq 4.3.5 aborts the process where it cannot accept a connection to a Unix socket for want of them.
        It would close the open ones with the listener, so that only the listeners' names are taken away.

        Raises:
            OSError: they cannot be given back.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reserved = min(limit // 4, MAX_RESERVED_FILES)
        left = limit - _count_open_files(limit)
        if not self._is_shut and left < reserved:
            self._is_shut = True
            for path in self._paths.values():
                with contextlib.suppress(FileNotFoundError):
                    path.rename(path.with_name(f".{path.name}"))
            logger.warning("%d of %d file numbers are left: no new local connection for now", left, limit)
        elif self._is_shut and left > reserved + len(self._paths):
            for path in self._paths.values():
                with contextlib.suppress(FileNotFoundError):  # then it is bound again
                    path.with_name(f".{path.name}").rename(path)
            self._is_shut = False
            logger.info("%d file numbers are left: new local connections are accepted again", left)

    def restore(self) -> None:
        """Bind again what was removed, and write the run's state where it changed; at most once a second.

        libzmq closes a socket's open connections with its old listener; clients connect again by themselves.

        Raises:
            FolderError: the folder cannot be made, a socket cannot be bound, or the connection file cannot be
                written.
        """
        if self._is_shut or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_SECONDS
        missing = [name for name, path in self._paths.items() if not self._is_bound(name, path)]
        if missing:
            folder = self._lock_folder()
            for name in missing:
                self._rebind(name, folder / name)
            logger.warning(
                "the sockets %s were removed; they are bound again in %s", ", ".join(missing), folder
            )
        is_outdated = missing or self._state() != self._told_state or not self._run.connection.exists()
        if is_outdated and self._run.find_displacement() is None:
            self.write_connection()

    def _is_bound(self, name: str, path: Path) -> bool:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._inodes[name]

    def _rebind(self, name: str, path: Path) -> None:
        socket: zmq.Socket[bytes] = getattr(self, name)
        if name in self._inodes:
            try:
                socket.unbind(f"ipc://{self._paths[name]}")
            except zmq.ZMQError:
                logger.debug("%s was not bound", name)  # by an attempt that failed half-way
        self._bind(name, path)
        self.rebound += 1

    def remove(self) -> None:
        """Remove the files, at the end."""
        hidden = [path.with_name(f".{path.name}") for path in self._paths.values()] if self._is_shut else []
        file = [self._run.connection] if self._run.find_displacement() is None else []
        for path in (*self._paths.values(), *hidden, *file):
            path.unlink(missing_ok=True)
        self._release_lock()


def _count_open_files(limit: int) -> int:
    """Open descriptors of this process; the limit where no folder can be opened, 0 without /proc."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))  # Linux before 6.2 says 0
    except FileNotFoundError:
        return 0
    except OSError:
        return limit
