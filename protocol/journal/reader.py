"""A journal from outside: all its segments as one, live or not, and without the daemon's help.

What is read is the journal of the moment of opening. Segments that are compressed meanwhile are found all the
same; those that retention takes before their turn are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import FolderError
from .events import RunStopped
from .lines import BLOCK, lines_backwards
from .segments import SegmentFolder, Span
from .wire import LINE_HEAD, Event, WireError, decode_line


class _View:
    """The closed segments and the hot one, without a hole or an overlap; `close` when done.

    Raises:
        OSError: there is nothing, or it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.folder = SegmentFolder(path)
        self.numbers = self.folder.numbers()
        while True:
            self.hot: BinaryIO | None = None
            try:
                self.hot = path.open("rb")
            except FileNotFoundError:
                if not self.numbers:
                    raise
            before, self.numbers = self.numbers, self.folder.numbers()
            if self.numbers[-1:] == before[-1:]:
                return
            self.close()

    def close(self) -> None:
        if self.hot is not None:
            self.hot.close()

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(
    path: Path, *, on_bad: Callable[[int, WireError], None] | None = None, wanted: Wanted | None = None
) -> Iterator[Event]:
    """Events of a journal, in the order written; a last line still being written is left out.

    Args:
        path: of `events.jsonl`, live or not; its closed segments are found beside it.
        on_bad: called with line number and error for a line that is no event, or for the damage behind which
            a segment cannot be read; without it that is raised.
        wanted: only these.

    Raises:
        WireError: a line or a segment is damaged; says which.
        FolderError: the journal cannot be read.
    """
    wanted = wanted or Wanted()
    with ExitStack() as stack:
        try:
            view = stack.enter_context(_View(path))
        except OSError as error:
            raise FolderError(f"cannot read the journal {path}: {error.strerror}") from None
        parts = [(view.folder.packed(n), view.folder.blocks(n)) for n in wanted.segments(view)]
        if view.hot is not None:
            parts.append((path, iter(lambda: view.hot.read(BLOCK) if view.hot else b"", b"")))
        for file, blocks in parts:
            yield from _events(file, blocks, on_bad, wanted)


@dataclass(frozen=True)
class Wanted:
    """A part of a journal: everything, or numbers `first`..`last` of one stream."""

    stream: str | None = None
    first: int = 1
    last: int | None = None

    def segments(self, view: _View) -> list[int]:
        """Numbers of the closed segments that may hold some of it."""
        if self.stream is None:
            return view.numbers
        listed = {segment.number: segment for segment in view.folder.manifest().segments}
        return [n for n in view.numbers if n not in listed or self._in(listed[n].streams.get(self.stream))]

    def _in(self, span: Span | None) -> bool:
        return span is not None and span.last >= self.first and (self.last is None or span.first <= self.last)

    def takes(self, line: bytes) -> bool:
        """Whether a line is part of it; a line that cannot be read is."""
        if self.stream is None:
            return True
        head = LINE_HEAD.match(line)
        if head is None:
            return True
        seq = int(head[1])
        within = seq >= self.first and (self.last is None or seq <= self.last)
        return within and head[2].decode() == self.stream


def _events(
    file: Path, blocks: Iterator[bytes], on_bad: Callable[[int, WireError], None] | None, wanted: Wanted
) -> Iterator[Event]:
    """Decode the lines of one segment."""
    number = 0
    try:
        for number, line in enumerate(_lines(blocks), start=1):
            if not wanted.takes(line):
                continue
            try:
                event = decode_line(line)
            except WireError as error:
                if on_bad is None:
                    raise WireError(f"{file}, line {number}: {error}") from None
                on_bad(number, error)
                continue
            yield event
    except _Damaged as damage:
        behind = WireError(f"{file}, after line {number}: {damage}")
        if on_bad is None:
            raise behind from None
        on_bad(number + 1, behind)
    except OSError as refused:
        raise FolderError(f"cannot read the journal {file}: {refused.strerror}") from None


class _Damaged(Exception):
    """A segment that ends too early."""


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    carry = b""
    while True:
        try:
            block = next(blocks, None)
        except WireError as error:
            raise _Damaged(str(error)) from None
        if block is None:
            return
        lines = (carry + block).split(b"\n")
        carry = lines.pop()
        yield from lines


def lines_newest_first(path: Path) -> Iterator[bytes]:
    """Whole lines of all segments, the newest first; none where there is no journal."""
    try:
        view = _View(path)
    except OSError:
        return
    with view:
        hot = lines_backwards(view.hot) if view.hot is not None else iter(())
        closed = (view.folder.blocks_backwards(number) for number in reversed(view.numbers))
        try:
            for block in itertools.chain(hot, itertools.chain.from_iterable(closed)):
                yield from reversed(block.split(b"\n")[:-1])
        except OSError:
            return


def newest_lines(path: Path, *, limit: int = 8 * 1024 * 1024) -> list[tuple[str, int, bytes]]:
    """The newest `limit` bytes of a journal's lines, as (stream, seq, line); none where there is none."""
    found = []
    for line in lines_newest_first(path):
        limit -= len(line) + 1
        if limit < 0:
            break
        head = LINE_HEAD.match(line)
        if head is not None:
            found.append((head[2].decode(), int(head[1]), line))
    return found[::-1]


def oldest_numbers(path: Path) -> dict[str, int]:
    """The oldest number that is held, per stream that retention has taken something of."""
    removed = SegmentFolder(path).manifest().removed.last
    return {stream: last + 1 for stream, last in removed.items()}


@dataclass(frozen=True)
class LastWords:
    """What a journal's tail says of the run."""

    ts: int
    round: int
    epoch: int
    state: str | None
    """The newest `run.state`, or None where the tail that was read has none."""
    stopped: RunStopped | None
    """Set where the last boot ended in order."""


def last_words(path: Path, *, limit: int = 4 * 1024 * 1024) -> LastWords | None:
    """Read the tail of a journal, back to the newest `run.state`; None where there is no event."""
    newest: Event | None = None
    stopped: RunStopped | None = None
    for line in lines_newest_first(path):
        limit -= len(line) + 1
        if limit < 0:
            break
        if newest is not None and b'"type":"run.' not in line[:128]:
            continue
        try:
            event = decode_line(line)
        except WireError:
            continue
        newest = newest or event
        if event.type == "run.started":
            return _words(newest, "STARTING", stopped)
        if event.type == "run.state":
            return _words(newest, event.data.state, stopped)
        if event.type == "run.stopped" and stopped is None:
            stopped = event.data
    return None if newest is None else _words(newest, None, stopped)


def _words(newest: Event, state: str | None, stopped: RunStopped | None) -> LastWords:
    return LastWords(newest.ts, newest.ctx.round, newest.ctx.epoch, state, stopped)
