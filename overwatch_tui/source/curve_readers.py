"""Read the curves of a run that is compared, a little at a time, from a journal here or elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from math import inf

from esper_overwatch.overwatch_tui.model.curves import ComparedRun, Curves
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.client.ssh_command import RemoteCommand
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError, TunnelError, WireError
from esper_overwatch.protocol.journal.reader import JournalRange

from .backfill import decoded
from .recording import DAMAGED, POLL_SECONDS

AGAIN_SECONDS = 5.0
"""Time after which a journal that was read to its end is read again, and after which a connection that broke
is made again.
"""

Coming = Generator[Event | EsperError | None]
"""Events of a run as they come; None where there is none for now, an error after which it goes on.

Raises:
    EsperError: it does not go on.
"""


class CurveReader:
    """The curves of one run, growing.

    Attributes:
        is_over: true once nothing more is read.
    """

    def __init__(self, run: ComparedRun, coming: Coming) -> None:
        self.run = run
        self.is_over = False
        self._coming = coming

    def step(self, seconds: float) -> bool:
        """Read for about `seconds`; returns True if something came.

        Raises:
            EsperError: it can no longer be read, or not for now (`is_over` tells which).
        """
        end, has_come = time.monotonic() + seconds, False
        try:
            for item in self._coming:
                if not isinstance(item, Event):
                    break
                self.run.fold(item)
                has_come = True
                if time.monotonic() > end:
                    return True
            else:
                self.is_over, item = True, None
        except EsperError:
            self.is_over = True
            raise
        if item is not None:
            raise item
        return has_come

    def read_whole(self) -> None:
        """Read to the end of a run that is read once.

        Raises:
            EsperError: it cannot be read.
        """
        while not self.is_over:
            if not self.step(inf):
                time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End what runs in the background."""
        self.is_over = True
        self._coming.close()


def skip_damage(_number: int, _error: WireError) -> None:
    """A damaged line is reported where its run is watched; here it is a hole."""


def from_journal(journal: JournalEvents, *, once: bool) -> Coming:
    """Of this machine; without `once` it is read again and again, since its run may be live."""
    after: dict[str, int] = {}
    while True:
        for event in journal.read(JournalRange(after=dict(after)), on_bad=skip_damage):
            after[event.stream] = max(event.seq, after.get(event.stream, 0))
            yield event
        if once:
            return
        yield from _pause()


def from_elsewhere(run: ComparedRun, connect: Callable[[], RemoteCommand]) -> Coming:
    """What another machine sends of a run; where the connection breaks, all of it again, for new curves.

    Args:
        connect: begins to fetch it: `esper-daemon replay` there.
    """
    while True:
        command, is_new = connect(), True
        try:
            has_ended, lines = False, list[bytes]()
            while lines or not has_ended:
                has_ended, lines = command.ended, command.take_lines()
                for event in decoded(lines):
                    if is_new:
                        run.curves, is_new = Curves(), False
                    yield event
                if not lines:
                    yield None
            command.check(good=(0, DAMAGED))
            return
        except TunnelError as error:
            if not command.was_cut:
                raise
            broken = error
        finally:
            command.stop()
        yield broken
        yield from _pause()


def _pause() -> Coming:
    begin = time.monotonic()
    yield None
    while time.monotonic() < begin + AGAIN_SECONDS:
        yield None
