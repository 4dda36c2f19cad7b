"""Leaves when the terminal goes away, or a signal says so, and leaves nothing behind.

A shell's SIGHUP does it where the terminal is the controlling one. Where it is not, Textual's input thread
would spin on the dead descriptor and its writer would wait forever.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType

HANGUP_EXIT = 129
"""Exit code that a shell reports for a program ended by SIGHUP."""


def leave_on_hangup(descriptor: int, clean_up: Callable[[], None]) -> None:
    """End the process, after `clean_up` in its own thread, once the terminal of `descriptor` hangs up."""

    def wait() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)
        poller.poll()
        try:
            clean_up()
        finally:
            os._exit(HANGUP_EXIT)

    threading.Thread(target=wait, name="hangup", daemon=True).start()


def leave_on_signals(clean_up: Callable[[], None]) -> None:
    """Have SIGHUP and SIGTERM end the process as ever, but after `clean_up`; one that is ignored stays so."""

    def leave(number: int, _frame: FrameType | None) -> None:
        try:
            clean_up()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)
