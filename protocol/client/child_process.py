"""Programs that this process runs in the background, and that end with it, however it ends."""

from __future__ import annotations

import ctypes
import os
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
        holds_input: its input is open and silent until `stop` or the end of this process; else it is empty.

    Raises:
        OSError: it cannot be run.
    """

    def __init__(self, command: Sequence[str], *, is_piped: bool = False, holds_input: bool = False) -> None:
        source = subprocess.PIPE if holds_input else subprocess.DEVNULL
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        if not is_piped:
            self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = _start(command, source, self._out, self._err)
            return
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._out = open(reader, "rb", buffering=0)  # noqa: SIM115
        with open(writer, "wb", buffering=0) as far_end:
            self._process = _start(command, source, far_end, self._err)

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
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._out.close()
        self._err.close()


def _start(command: Sequence[str], source: int, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    """Run a command from a thread that waits for its end: Linux takes a thread's end for the parent's death.

    Raises:
        OSError: it cannot be run.
    """
    process: Future[subprocess.Popen[bytes]] = Future()
    arguments = (process, command, source, out, err)
    threading.Thread(target=_run, args=arguments, name="esper-child", daemon=True).start()
    return process.result()


def _run(
    process: Future[subprocess.Popen[bytes]],
    command: Sequence[str],
    source: int,
    out: IO[bytes],
    err: IO[bytes],
) -> None:
    try:
        started = subprocess.Popen(command, stdin=source, stdout=out, stderr=err, preexec_fn=_end_with_parent)
    except (OSError, subprocess.SubprocessError, ValueError, MemoryError) as error:
        process.set_exception(error)
    else:
        process.set_result(started)
        started.wait()


_libc: Any = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """In the child: ask Linux for SIGTERM at the parent's death."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
