"""Where `tail` and `replay` have a run's events from: its files, or its daemon behind a port."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from protocol import connect
from protocol.errors import RequestError, RunNotFound
from protocol.events import STREAMS, Stream
from protocol.history import Wanted, lines_newest_first, oldest_numbers, read
from protocol.runs import find_run
from protocol.version import __version__
from protocol.wire import LINE_HEAD, Event

Line = tuple[str, int, bytes]
"""Stream, number, line."""
CHUNK = 64
CHUNK_MAX = 4_096


class Teller(Protocol):
    """A run's events, in either direction."""

    name: str
    """For a subscriber: the run's name or its address."""
    last: dict[str, int]
    """The newest number per stream, where it is known without reading."""

    def newest_first(self) -> Iterator[Line]:
        """Whole lines, the newest first."""

    def oldest(self, stream: str) -> int:
        """The oldest number that is held."""

    def read(self, wanted: Wanted) -> Iterator[Event]:
        """Events in the order written."""

    def check(self) -> None:
        """Raise RunNotFound where a run on this machine is no longer there."""

    def close(self) -> None:
        """Let go of it."""


class Files:
    """The journal of a run on this machine, which may have ended.

    Raises:
        RunNotFound: no such run.
    """

    def __init__(self, run: str | None) -> None:
        info = find_run(run)
        self.name = info.name
        self.last: dict[str, int] = {}
        self._journal = info.path / "events.jsonl"

    def newest_first(self) -> Iterator[Line]:
        for line in lines_newest_first(self._journal):
            head = LINE_HEAD.match(line)
            if head is not None:
                yield head[2].decode(), int(head[1]), line

    def oldest(self, stream: str) -> int:
        return oldest_numbers(self._journal).get(stream, 1)

    def read(self, wanted: Wanted) -> Iterator[Event]:
        return read(self._journal, wanted=wanted)

    def check(self) -> None:
        folder = self._journal.parent
        if not folder.is_dir():
            raise RunNotFound(f"no run {self.name} any more: {folder} is gone")

    def close(self) -> None:
        """Nothing is held."""


class Wire:
    """A live daemon, asked for ranges; between streams the order is that of the events' times.

    Raises:
        NoReply: it does not answer.
        KeyRefused: it does not let this key in.
    """

    def __init__(self, address: str) -> None:
        self.name = address
        self._client = connect(address, client=f"esper-daemon/{__version__}")
        self.last: dict[str, int] = self._client.status()["seq"]

    def newest_first(self) -> Iterator[Line]:
        streams = [self._backwards(stream) for stream in reversed(STREAMS)]
        for event in heapq.merge(*streams, key=lambda event: -event.ts):
            yield event.stream, event.seq, event.line

    def _backwards(self, stream: Stream) -> Iterator[Event]:
        last, size, oldest = self.last[stream], CHUNK, self.oldest(stream)
        while last >= oldest:
            first = max(oldest, last - size + 1)
            yield from reversed(list(self._client.replay(stream, first, last)))
            last, size = first - 1, min(2 * size, CHUNK_MAX)

    def oldest(self, stream: str) -> int:
        try:
            self._client.call("replay", {"stream": stream, "first": 1, "last": 1})
        except RequestError as error:
            if error.kind != "range_gone":
                raise
            return int(error.data["oldest"])
        return 1

    def read(self, wanted: Wanted) -> Iterator[Event]:
        parts = [
            self._client.replay(
                stream, max(wanted.first, self.oldest(stream)), wanted.last or self.last[stream]
            )
            for stream in STREAMS
            if wanted.stream in (None, stream)
        ]
        return heapq.merge(*parts, key=lambda event: event.ts)

    def check(self) -> None:
        """Whether the machine behind the address is there shows by itself."""

    def close(self) -> None:
        self._client.close()


def teller_of(run: str | None) -> Teller:
    """What RUN means: a name, or `tcp://key@host:port`."""
    return Wire(run) if run is not None and run.startswith("tcp://") else Files(run)
