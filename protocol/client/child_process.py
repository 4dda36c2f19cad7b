"""Programs that this process runs in the background, and that end with it, however it ends."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import islice
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_PIPE_BYTES, _MAX_PIECES = 1 << 16, 16


class ChildProcess:
    """One program with its output; it ends with this process.

    Args:
        command: program and arguments.
        is_piped: its output is read while it comes, by `take`, and waits where nobody does; else a file
            holds all of it.

    Raises:
        OSError: it cannot be run.
    """

    def __init__(self, command: Sequence[str], *, is_piped: bool = False) -> None:
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        if not is_piped:
            self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = _starter.start(command, self._out, self._err)
            return
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._out = open(reader, "rb", buffering=0)  # noqa: SIM115
        with open(writer, "wb", buffering=0) as far_end:
            self._process = _starter.start(command, far_end, self._err)

    def take(self) -> bytes:
        """What has come through the pipe since, up to a MiB; never waits."""
        pieces = iter(lambda: self._out.read(_PIPE_BYTES) or b"", b"")
        return b"".join(islice(pieces, _MAX_PIECES))

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def code(self) -> int | None:
        return self._process.returncode

    @property
    def file(self) -> IO[bytes]:
        """Output so far; closed by `stop`."""
        return self._out

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        self._err.seek(0)
        lines = [line.strip() for line in self._err.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it and forget its output."""
        if not self.ended:
            self._process.terminate()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._out.close()
        self._err.close()


class _Starter:
    """The thread that starts children: Linux takes the end of the thread that forked for the parent's death.

    It lives as long as the process; after a fork the new process begins its own with the first child.
    """

    def __init__(self) -> None:
        self._begin = threading.Lock()
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()

    def start(self, command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        """Run a command.

        Raises:
            OSError: it cannot be run.
        """
        with self._begin:
            if self._thread is None or not self._thread.is_alive():
                self._orders = queue.SimpleQueue()
                self._thread = threading.Thread(
                    target=_start_all, args=(self._orders,), name="esper-children", daemon=True
                )
                self._thread.start()
        order = _Order(command, out, err)
        self._orders.put(order)
        return order.process.result()


class _Order:
    """A command to be run, and the process that came of it."""

    def __init__(self, command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> None:
        self.command, self.out, self.err = command, out, err
        self.process: Future[subprocess.Popen[bytes]] = Future()


def _start_all(orders: queue.SimpleQueue[_Order]) -> None:
    while True:
        order = orders.get()
        try:
            process = subprocess.Popen(
                order.command,
                stdin=subprocess.DEVNULL,
                stdout=order.out,
                stderr=order.err,
                preexec_fn=_end_with_parent,
            )
        except (OSError, subprocess.SubprocessError, ValueError, MemoryError) as error:
            order.process.set_exception(error)
        else:
            order.process.set_result(process)


_libc: Any = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """In the child: ask Linux for SIGTERM at the parent's death."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_starter = _Starter()
