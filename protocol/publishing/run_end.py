"""How a published run ends, from what ended its loop."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT, first_line
from esper_overwatch.protocol.messages.events import FINISHED, LogLine

FAILED_EXIT = 11


def end_of(error: BaseException | str | None) -> tuple[str, int, str | None]:
    """Reason, exit code and text of an end by an exception, or in order."""
    if error is None:
        return FINISHED, 0, None
    if isinstance(error, str):
        return "failed", FAILED_EXIT, error
    text = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED_EXIT, text
    if isinstance(error, SystemExit):
        status = _exit_status(error.code)
        return ("failed", status, text) if status else (FINISHED, 0, None)
    return "failed", FAILED_EXIT, text


def _exit_status(code: object) -> int:
    """Exit status of the process, 0 to 255, as the interpreter reads the code of a SystemExit."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 255


def log_line(error: BaseException) -> LogLine:
    """The exception and where it came from, as a line of the run's log."""
    trace = "".join(traceback.format_exception(error))
    return LogLine(level="ERROR", logger=__name__, message=end_of(error)[2] or "", traceback=trace)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for what has to be done as a whole; the handler is called behind it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # handlers run in the main thread alone
        return
    held: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *args: held.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])
