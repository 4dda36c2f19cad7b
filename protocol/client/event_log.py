"""A run's events from one source: those that are held, and those to come.

They are read from its journal where that is on this machine, and asked of its daemon where only a port leads
to it. This lies in `client`, above `journal`, since both a daemon's answers and the events to come need one.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

from esper_overwatch.protocol.codec.json_lines import LINE_PREFIX, Event
from esper_overwatch.protocol.errors import RequestError, RunNotFound, WireError
from esper_overwatch.protocol.journal.reader import JournalRange, lines_newest_first, oldest_numbers, read
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .client import JOIN_SECONDS, connect
from .items import Item, LinkChanged, Reset
from .subscriber import Subscriber

Line = tuple[str, int, bytes]
"""Stream, number, line."""
MIN_REQUEST_EVENTS = 64
MAX_REQUEST_EVENTS = 4_096
QUIET_SECONDS = 1.0
"""After so long without an event `Following` looks whether the run is still there."""


class EventLog(Protocol):
    """A run's events, in either direction; `Following` gives those to come."""

    name: str
    """For a subscriber: the run's name or its address."""
    last: dict[str, int]
    """The newest number per stream, where it is known without reading."""

    def newest_first(self) -> Iterator[Line]:
        """Complete lines, the newest first."""

    def oldest(self, stream: str) -> int:
        """The oldest number that is held."""

    def read(
        self, wanted: JournalRange, *, on_bad: Callable[[int, WireError], None] | None = None
    ) -> Iterator[Event]:
        """Events in the order written; `on_bad` as in `journal.reader.read`, where it is read here."""

    def since(self, after: Mapping[str, int]) -> Iterator[Event]:  # noqa: ARG002
        """Whole events behind these numbers per stream, as far as they can be read without the daemon."""
        return iter(())

    @property
    def is_over(self) -> bool:
        """Whether a run on this machine has ended in order, so that nothing comes."""
        return False

    def check(self) -> None:
        """Raise RunNotFound where a run on this machine is gone; a machine shows as a lost connection."""
        return

    def close(self) -> None:
        """Release it."""
        return


class JournalEvents(EventLog):
    """A journal on this machine, of a run that is live or has ended.

    Args:
        journal: path of `events.jsonl`.
    """

    def __init__(self, journal: Path) -> None:
        self.name = journal.parent.name
        self.last: dict[str, int] = {}
        self._journal = journal

    def newest_first(self) -> Iterator[Line]:
        for line in lines_newest_first(self._journal):
            head = LINE_PREFIX.match(line)
            if head is not None:
                yield head[2].decode(), int(head[1]), line

    def oldest(self, stream: str) -> int:
        return oldest_numbers(self._journal).get(stream, 1)

    def read(
        self, wanted: JournalRange | None = None, *, on_bad: Callable[[int, WireError], None] | None = None
    ) -> Iterator[Event]:
        """Events in the order written; see `journal.reader.read`."""
        return read(self._journal, wanted=wanted, on_bad=on_bad)

    def since(self, after: Mapping[str, int]) -> Iterator[Event]:
        return self.read(JournalRange(after=after), on_bad=lambda *_: None)

    @property
    def is_over(self) -> bool:
        run = find_run(self.name)
        return not run.is_live and run.state != "DIED"

    def check(self) -> None:
        folder = self._journal.parent
        if not folder.is_dir():
            raise RunNotFound(f"no run {self.name} any more: {folder} is gone")


class DaemonEvents(EventLog):
    """A live daemon, asked for ranges; between streams the order is that of the events' times.

    Args:
        address: `tcp://key@host:port`, or `ssh://user@host/run`.
        client: how it calls itself in the audit events.
        remote_daemon: for ssh, the command of esper-daemon there.

    Raises:
        NoReply: it does not answer.
        KeyRefused: it does not let this key in.
    """

    def __init__(self, address: str, *, client: str, remote_daemon: str | None = None) -> None:
        self.name = address
        self._client = connect(address, client=client, remote_daemon=remote_daemon)

    @cached_property
    def last(self) -> dict[str, int]:  # type: ignore[override]
        """The newest number per stream when it is first asked for."""
        return dict(self._client.status()["seq"])

    def newest_first(self) -> Iterator[Line]:
        streams = [self._backwards(stream) for stream in reversed(STREAMS)]
        for event in heapq.merge(*streams, key=lambda event: -event.ts):
            yield event.stream, event.seq, event.line

    def _backwards(self, stream: Stream) -> Iterator[Event]:
        last, size, oldest = self.last[stream], MIN_REQUEST_EVENTS, self.oldest(stream)
        while last >= oldest:
            first = max(oldest, last - size + 1)
            yield from reversed(list(self._client.replay(stream, first, last)))
            last, size = first - 1, min(2 * size, MAX_REQUEST_EVENTS)

    def oldest(self, stream: str) -> int:
        try:
            self._client.call("replay", {"stream": stream, "first": 1, "last": 1})
        except RequestError as error:
            if error.kind != "range_gone":
                raise
            return int(error.data["oldest"])
        return 1

    def read(
        self,
        wanted: JournalRange,
        *,
        on_bad: Callable[[int, WireError], None] | None = None,  # noqa: ARG002 - its daemon logs that
    ) -> Iterator[Event]:
        parts = [
            self._client.replay(
                stream, max(wanted.first, self.oldest(stream)), wanted.last or self.last[stream]
            )
            for stream in STREAMS
            if wanted.stream in (None, stream)
        ]
        return heapq.merge(*parts, key=lambda event: event.ts)

    def close(self) -> None:
        self._client.close()


def open_event_log(run: str | None, *, client: str, remote_daemon: str | None = None) -> EventLog:
    """The events of RUN: a name on this machine (None: the newest run), or the address of a live one.

    Raises:
        RunNotFound: no such run.
        NoReply: the daemon at the address does not answer.
        KeyRefused: the daemon at the address does not let this key in.
        TunnelError: the machine at the address cannot be reached.
    """
    if run is not None and run.startswith(("tcp://", "ssh://")):
        return DaemonEvents(run, client=client, remote_daemon=remote_daemon)
    return JournalEvents(find_run(run).path / EVENTS_FILE)


class Following:
    """The events to come, also of the run's next boots, until it ends in order.

    A live run is joined here, so that between what is read of the log afterwards and what comes nothing is
    missing.

    Args:
        log: whose; it stays open.
        client: how it calls itself in the audit events.

    Attributes:
        is_joined: whether it has the stream of events, or has seen its end.
    """

    def __init__(self, log: EventLog, *, client: str) -> None:
        self._log, self._subscriber = log, Subscriber(log.name, client=client)
        self._early: list[Item] = []
        end = time.monotonic() + JOIN_SECONDS
        while self._is_joining and time.monotonic() < end:
            self._early += self._subscriber.drain()
            self._subscriber.wait(0.05)
        self._is_over = self._subscriber.state == "ended" or log.is_over
        self.is_joined = self._is_over or any(isinstance(item, Reset) for item in self._early)

    @property
    def _is_joining(self) -> bool:
        return self._subscriber.state in ("searching", "connecting") and self._subscriber.problem is None

    def events(self, after: Mapping[str, int], on_lost: Callable[[str], None]) -> Iterator[Event]:
        """The events.

        Args:
            after: the newest number known, per stream; what is not newer is left out.
            on_lost: called with the reason whenever the daemon is lost.

        Raises:
            RunNotFound: the run is gone from this machine.
        """
        last = dict(after)
        if not self.is_joined and self._subscriber.problem:
            on_lost(self._subscriber.problem)
        while not self._is_over:
            early, self._early = self._early, []
            for item in chain(early, self._subscriber.items(QUIET_SECONDS)):
                if isinstance(item, LinkChanged) and item.state == "lost":
                    on_lost(self._subscriber.problem or "gone")
                elif isinstance(item, Event):
                    if item.seq > last.get(item.stream, 0) + 1:  # a boot's snapshot has holes
                        yield from _newer(self._log.since(last), last)
                    yield from _newer([item], last)
            self._log.check()
            self._is_over = self._subscriber.state == "ended"
        yield from _newer(self._log.since(last), last)

    def close(self) -> None:
        """Close the sockets."""
        self._subscriber.close()


def _newer(events: Iterable[Event], last: dict[str, int]) -> Iterator[Event]:
    """Those that are newer than `last`, which is kept up to date."""
    for event in events:
        if event.seq > last.get(event.stream, 0):
            last[event.stream] = event.seq
            yield event
