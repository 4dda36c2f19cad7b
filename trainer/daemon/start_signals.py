"""Signals while a run is being started, and while its process ends.

The system's own answer to SIGHUP, SIGUSR1 and SIGUSR2 is the end of the process, and the exception that
Python raises at SIGINT is lost where a library catches everything while it is imported.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT

from .signal_listener import SignalListener

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def answer_start_signals() -> None:
    """From now until the daemon sets its own handlers; call it in the main thread.

    SIGINT ends the start with exit code 130, SIGUSR1 prints every thread's stack to standard error. SIGHUP
    and SIGUSR2 do nothing, for there is no log yet and no telemetry.
    """
    signal.signal(signal.SIGINT, _leave)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    SignalListener(_show_stacks)


def ignore_signals() -> None:
    """From now until the process is gone: the interpreter, when it ends, gives its handlers back."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave(*_: object) -> None:
    print("esper-daemon: interrupted before the run was ready", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED_EXIT)


def _show_stacks(number: int) -> None:
    """In the listener's thread: the main one may be inside a long operation of C."""
    if number == signal.SIGUSR1:
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
