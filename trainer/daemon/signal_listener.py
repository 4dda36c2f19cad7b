"""Signals are answered while the main thread is inside a long operation of C.

Python runs a handler between two instructions of the main thread, which may be seconds away. The byte that
the interpreter writes for each signal at once is read here, in a thread of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalListener:
    """Calls `on_signal` with the number of each signal that has a handler, at once; made in the main thread.

    Args:
        on_signal: called in a thread of its own, before the signal's handler or beside it.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        _active_listeners.append(self)
        self._thread = threading.Thread(target=self._listen, name="esper-signals", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while numbers := self._read.recv(64):
            for number in numbers:
                self._on_signal(number)

    def close(self) -> None:
        """Back to what was before; in the main thread."""
        signal.set_wakeup_fd(self._before)
        _active_listeners.remove(self)
        self._write.close()
        self._thread.join()
        self._read.close()


_active_listeners: list[SignalListener] = []


def _disconnect_child() -> None:
    """A forked child's signals are not its parent's."""
    if _active_listeners:
        signal.set_wakeup_fd(-1)
        _active_listeners.clear()


os.register_at_fork(after_in_child=_disconnect_child)
