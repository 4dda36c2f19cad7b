"""Signals of the daemon's process: while it starts, while it trains, and while it ends.

Python runs a handler between two instructions of the main thread, which may be seconds away inside a long
operation of C. The byte that the interpreter writes for each signal at once is read by `SignalListener`, in a
thread of its own. The system's own answer to SIGHUP, SIGUSR1 and SIGUSR2 is the end of the process, and the
exception that Python raises at SIGINT is lost where a library catches everything while it is imported.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT

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


_T = TypeVar("_T")


class Interrupted(BaseException):
    """A second signal: leave now."""


class EndSignals:
    """Handles them from its construction on; made in the main thread.

    Args:
        request_stop: called in the handler of the first one, with its name.

    Attributes:
        count: how many there were.
        is_training: false once `run` has ended; what ends then takes seconds, and is not interrupted.
    """

    def __init__(self, request_stop: Callable[[str], None]) -> None:
        self.count = 0
        self.is_training = True
        self._request_stop = request_stop
        self._can_interrupt = False
        for number in END_SIGNALS:
            signal.signal(number, self._handle)

    def run(self, train: Callable[[], _T]) -> _T:
        """Call `train`.

        Raises:
            Interrupted: a second signal came before `train` returned, or had come before. Only here, and
                once: nothing else has to expect it.
        """
        try:
            self._can_interrupt = True
            if self.count > 1:
                raise Interrupted
            return train()
        finally:
            self._can_interrupt = self.is_training = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1 and self.is_training:
            self._request_stop(signal.Signals(number).name)
        elif self._can_interrupt:
            self._can_interrupt = False
            raise Interrupted


_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def answer_start_signals() -> None:
    """Handle signals until the daemon sets its own handlers; call it in the main thread.

    SIGINT ends the start with exit code 130, SIGUSR1 prints every thread's stack to standard error. SIGHUP
    and SIGUSR2 do nothing, for there is no log yet and no telemetry.
    """
    signal.signal(signal.SIGINT, _leave)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    SignalListener(_show_stacks)


def ignore_signals() -> None:
    """Ignore signals until the process is gone: the interpreter, when it ends, gives its handlers back."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave(*_: object) -> None:
    print("esper-daemon: interrupted before the run was ready", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED_EXIT)


def _show_stacks(number: int) -> None:
    """Runs in the listener's thread: the main one may be inside a long operation of C."""
    if number == signal.SIGUSR1:
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
