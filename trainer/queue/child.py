"""A child process that trains, and whether it lives: also for who did not start it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.storage.lock import holder_of, lock_request

_TAIL_BYTES = 4096


def start_child(
    words: Sequence[str], log: Path, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `esper-daemon WORDS`, whose output is appended to a file that it keeps locked while it lives.

    An open file description is locked, which the child inherits with its output: it holds the lock beyond its
    parent's death, and there is no moment in which it lives without.

    Args:
        log: file, made where it is missing.
        environ: of the child; None = this process's.
        folder: its working directory; None = this process's.

    Raises:
        OSError: another child has the log, or a file or folder cannot be used.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(log, flags, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock_request())
        # A session of its own: Ctrl-C reaches the parent alone, which then ends it in order.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "esper_overwatch.trainer", *words],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
            env=environ,
            cwd=folder,
        )
    finally:
        os.close(fd)


def is_alive(log: Path) -> bool:
    """True if the child that writes to `log` lives."""
    return holder_of(log) is not None


def last_line(log: Path) -> str:
    """The last line that the child has printed, without the program's name."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        said = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return clean_text(said[-1].removeprefix("esper-daemon: ")) if said else f"see {log}"
