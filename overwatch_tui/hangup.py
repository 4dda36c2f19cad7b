"""Leaves when the terminal goes away, or a signal says so, and leaves nothing behind.

A shell's SIGHUP does it where the terminal is the controlling one. Where it is not, Textual's input thread
would spin on the dead descriptor and its writer would wait forever.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
from collections.abc import Callable
from types import FrameType

HANGUP_EXIT = 129
"""Exit code that a shell reports for a program ended by SIGHUP."""
_MODES = (1000, 1003, 1006, 1015, 1004, 2004, 2048, 1049)
"""Of mouse, focus, paste, resize and the alternate screen, as Textual sets them."""
_RESET = "\x18\x1b[<u" + "".join(f"\x1b[?{mode}l" for mode in _MODES) + "\x1b[?7h\x1b[?25h"
"""What was being written is cancelled; keys, modes, line wrap and cursor are as a shell expects them."""


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
    """Have SIGHUP and SIGTERM end the process as ever, but after `clean_up`; one that is ignored stays so.

    The terminal is given back as it is now.
    """
    former = termios.tcgetattr(2) if os.isatty(2) else None

    def leave(number: int, _frame: FrameType | None) -> None:
        try:
            clean_up()
            if former is not None and termios.tcgetattr(2) != former:  # Textual or the first frame has it
                termios.tcflush(2, termios.TCOFLUSH)  # where nobody reads, there is room now
                termios.tcsetattr(2, termios.TCSANOW, former)
                os.write(2, _RESET.encode())
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)
