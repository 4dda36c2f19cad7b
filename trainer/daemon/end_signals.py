"""SIGTERM and SIGINT: an orderly end, and the end now."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from .signal_listener import END_SIGNALS

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
