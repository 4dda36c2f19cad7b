"""Log records go to the run's `daemon.log`, to standard error and, from INFO on, to the `log` stream."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path
from typing import IO

from esper_overwatch.protocol.codec.text import clean_lines
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.protocol.storage.folders import open_private
from esper_overwatch.trainer.telemetry.log_lines import log_line, settle

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Records as text whose words, some of them a client's, neither steer a terminal nor forge a record."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        settle(record)
        return clean_lines(super().format(record))


class _EventHandler(logging.Handler):
    """Turns records into `log` events, but for those that say what another event says."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(logging.INFO)
        self._emitter = emitter

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "is_in_event"):
            self._emitter.emit(log_line(record))


def reopen(log: Path, file: IO[str]) -> None:
    """Go on in a new file at `log`, where the old one has been moved away; safe in a signal handler.

    Everything that writes to the old file's descriptor follows: the log, faulthandler, and of a detached
    daemon the standard streams.
    """
    new = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    old = os.fstat(file.fileno())
    for descriptor in (file.fileno(), 1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), old):
                os.dup2(new, descriptor, inheritable=descriptor < 3)
    os.close(new)


def dump_stacks(file: IO[str]) -> None:
    """Write every thread's stack to the log file.

    Not by `faulthandler.register`: its handler reads, without the interpreter's lock, frames that other
    threads are changing, and ended a daemon in training after a few dozen signals.
    """
    faulthandler.dump_traceback(file, all_threads=True)


def set_up(log: Path, emitter: Emitter, *, terminal: bool) -> IO[str]:
    """Attach the handlers; a crash writes every thread's stack to the log file.

    Returns:
        The open log file; it must stay open as long as the process lives.
    """
    file = open(log, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115 - open as long as the process
    handlers: list[logging.Handler] = [logging.StreamHandler(file), _EventHandler(emitter)]
    if terminal:
        handlers.append(logging.StreamHandler(sys.stderr))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(LineFormatter())
        root.addHandler(handler)
    logging.captureWarnings(True)
    faulthandler.enable(file)
    signal.signal(signal.SIGUSR1, lambda *_: None)  # what the signal listener hears must have a handler
    return file
