"""What a loop gives that cannot be published, which must not end the loop: it is told once, and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from esper_overwatch.protocol.messages.events import LogLine

logger = logging.getLogger(__name__)

P = ParamSpec("P")
MAX_SUBJECTS = 1_000
"""Names of which each is told; the others are counted together."""
_OTHERS = "other names"


class LeftOut:
    """Warns once of each name whose value was left out or whose name was changed; safe from any thread.

    Args:
        emit: sends the same to the run's log; not called after `close`.
    """

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit: Callable[[Any], None] | None = emit
        self._lock = threading.RLock()  # a signal handler may log, too
        self.is_silent = False
        """True = takes in nothing any more: what is given then is of no use to anybody."""
        self._told: dict[str, str] = {}
        self._times: dict[str, int] = {}

    def __call__(self, name: str, why: object) -> None:
        """Take in that something of this name was left out, or changed.

        Args:
            why: the message, or the error that has it.
        """
        if self.is_silent:
            return
        with self._lock:
            if name not in self._told and len(self._told) >= MAX_SUBJECTS:
                name, why = _OTHERS, f"more than {MAX_SUBJECTS} names cannot be published; these are not told"
            self._times[name] = self._times.get(name, 0) + 1
            if name in self._told:
                return
            first_line = next(iter(str(why).strip().splitlines()), type(why).__name__)
            self._told[name] = message = f"not published as given: {first_line}"
        logger.warning("%s", message)
        self._send(message)

    def close(self) -> None:
        """Tell how often, where it was more than once; later ones are warned of only."""
        with self._lock:
            often = [(self._told[name], times) for name, times in self._times.items() if times > 1]
        for message, times in often:
            self._send(f"{message} ({times} times)")
        self._emit = None

    def forget_run(self) -> None:
        """The run is another process's: tell it nothing more."""
        self._lock = threading.RLock()  # a thread that is not here may hold the one of the parent
        self._emit = None

    def _send(self, message: str) -> None:
        if self._emit is not None:
            self._emit(LogLine(level="WARNING", logger="publish", message=message))


class _Tolerant(Protocol):
    @property
    def note(self) -> Callable[[str, object], None] | None:
        """None = errors are raised."""


R = TypeVar("R", bound=_Tolerant)


def never_raises(method: Callable[Concatenate[R, P], None]) -> Callable[Concatenate[R, P], None]:
    """A method of a run that, unless the run is strict, notes an error in place of raising it."""

    @wraps(method)
    def call(run: R, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(run, *args, **kwargs)
        except Exception as error:
            if run.note is None:
                raise
            run.note(f"{error!s:.160}", error)

    return call
