"""`start --detach`: the daemon runs in a session of its own; the caller learns whether it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from esper_overwatch.protocol.storage.folders import open_private

READY_VARIABLE = "_ESPER_READY_FD"


def start_detached(arguments: list[str]) -> int:
    """Run `python -m esper_overwatch.trainer ARGUMENTS` in the background until it is ready or has failed.

    Until then its standard error is the caller's, so that a refusal reads the same as in the foreground, and
    Ctrl-C ends the start.

    Returns:
        0 once it is ready, else its exit code.
    """
    read_end, write_end = os.pipe()
    environment = {**os.environ, READY_VARIABLE: str(write_end)}
    with open(os.devnull, "rb") as nothing:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "esper_overwatch.trainer", *arguments],
            stdin=nothing,
            start_new_session=True,
            pass_fds=(write_end,),
            env=environment,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        try:
            ready = pipe.read()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            raise
    return 0 if ready else child.wait() or 1


def report_ready(log: Path) -> None:
    """In the child: say that the start went well and leave the caller's terminal for the log file."""
    descriptor = int(os.environ.pop(READY_VARIABLE))
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab", opener=open_private) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.write(descriptor, b"1")
    os.close(descriptor)


def is_detached() -> bool:
    """True in a child that still has to report."""
    return READY_VARIABLE in os.environ
