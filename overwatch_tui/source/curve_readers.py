"""Read the curves of a run that is compared, a little at a time, from a journal here or elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Protocol

from esper_overwatch.overwatch_tui.model.curves import ComparedRun, Curves
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.client.ssh_command import RemoteCommand
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import EsperError, WireError
from esper_overwatch.protocol.journal.reader import JournalRange

from .recording import DAMAGED, POLL_SECONDS

AGAIN_SECONDS = 5.0
"""Time after which a journal that was read to its end is read again, and after which a connection that broke
is made again.
"""


class CurveReader(Protocol):
    """The curves of one run, growing."""

    run: ComparedRun
    is_over: bool
    """True once nothing more is read."""

    def step(self, seconds: float) -> bool:
        """Read for about `seconds`; returns True if something came.

        Raises:
            EsperError: it can no longer be read, or not for now (`is_over` tells which).
        """

    def read_whole(self) -> None:
        """Read all that there is now.

        Raises:
            EsperError: it cannot be read.
        """

    def close(self) -> None:
        """End what runs in the background."""


def skip_damage(_number: int, _error: WireError) -> None:
    """A damaged line is reported where its run is watched; here it is a hole."""


class JournalCurves:
    """Folds a journal of this machine into curves; one of a live run is read again and again."""

    def __init__(self, run: ComparedRun, events: JournalEvents) -> None:
        self.run = run
        self._journal = events
        self._after: dict[str, int] = {}
        self._events: Iterator[Event] | None = None
        self._again_at = 0.0
        self.is_over = False

    def step(self, seconds: float) -> bool:
        try:
            return self._read(seconds)
        except EsperError:
            self._events, self.is_over = None, True
            raise

    def _read(self, seconds: float) -> bool:
        if self.is_over:
            return False
        began = time.monotonic()
        if self._events is None:
            if began < self._again_at:
                return False
            wanted = JournalRange(after=dict(self._after))
            self._events = self._journal.read(wanted, on_bad=skip_damage)
        has_come = False
        for event in self._events:
            self._after[event.stream] = max(event.seq, self._after.get(event.stream, 0))
            self.run.fold(event)
            has_come = True
            if time.monotonic() - began > seconds:
                return True
        self._events, self._again_at = None, time.monotonic() + AGAIN_SECONDS
        return has_come

    def read_whole(self) -> None:
        self._read(inf)

    def close(self) -> None:
        self._events = None


class FetchedCurves:
    """Folds the events that another machine sends of a run; where the connection breaks, all of them again.

    Args:
        connect: begins to fetch them: `esper-daemon replay` there.
    """

    def __init__(self, run: ComparedRun, connect: Callable[[], RemoteCommand]) -> None:
        self.run = run
        self._connect = connect
        self._command: RemoteCommand | None = None
        self._lines = deque[bytes]()
        self._is_new = True
        """True until the first event of a connection, whose curves replace the earlier ones."""
        self._again_at = 0.0
        self.is_over = False

    def step(self, seconds: float) -> bool:
        began = time.monotonic()
        if self.is_over or (self._command is None and began < self._again_at):
            return False
        if self._command is None:
            self._again_at = began + AGAIN_SECONDS
            self._command, self._is_new = self._connect(), True
            self._lines.clear()
        command, has_ended, has_come = self._command, self._command.ended, False
        self._lines.extend(() if self._lines else command.take_lines())
        while self._lines and time.monotonic() - began <= seconds:
            self._fold(self._lines.popleft())
            has_come = True
        if has_ended and not has_come:
            self._end(command)
        return has_come

    def _fold(self, line: bytes) -> None:
        try:
            event = decode_line(line)
        except WireError:
            return
        if self._is_new:
            self.run.curves, self._is_new = Curves(), False
        self.run.fold(event)

    def _end(self, command: RemoteCommand) -> None:
        self._command, self.is_over = None, not command.was_cut
        try:
            command.check(good=(0, DAMAGED))
        finally:
            command.stop()

    def read_whole(self) -> None:
        while not self.is_over:
            if not self.step(inf):
                time.sleep(POLL_SECONDS)

    def close(self) -> None:
        self.is_over = True
        if self._command is not None:
            self._command.stop()
            self._command = None
