"""Leaves when the terminal goes away.

A shell's SIGHUP does it where the terminal is the controlling one. Where it is not, Textual's input thread
would spin on the dead descriptor and its writer would wait forever.
"""

from __future__ import annotations

import os
import select
import threading

HANGUP_EXIT = 129
"""What a shell reports of a program that SIGHUP ended."""


def leave_on_hangup(descriptor: int) -> None:
    """End the process once the terminal behind `descriptor` has hung up; costs nothing until then."""

    def wait() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)
        poller.poll()
        os._exit(HANGUP_EXIT)

    threading.Thread(target=wait, name="hangup", daemon=True).start()
