"""A journal from outside: all its segments as one, live or not, and without the daemon's help.

What is read is the journal of the moment of opening. Segments that are compressed meanwhile are found all the
same; those that retention takes before their turn are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from esper_overwatch.protocol.codec.json_lines import LINE_PREFIX, Event, decode_line
from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.messages.events import RunStopped
from esper_overwatch.protocol.storage.folders import open_regular

from .line_files import BLOCK_BYTES, MAX_LINE_BYTES, Span, lines_backwards
from .segments import OnDamage, SegmentFolder


class _OpenJournal:
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
                self.hot = open_regular(path)
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


def _open(path: Path) -> closing[_OpenJournal]:
    try:
        return closing(_OpenJournal(path))
    except OSError as error:
        raise FolderError(f"cannot read the journal {path}: {error.strerror}") from None


def read(
    path: Path, *, on_bad: Callable[[int, WireError], None] | None = None, wanted: JournalRange | None = None
) -> Iterator[Event]:
    """Events of a journal, in the order written; a last line still being written is left out.

    Args:
        path: of `events.jsonl`, live or not; its closed segments are found beside it.
        on_bad: called with line number and error for a line that is not an event, or for frames of a
            segment that cannot be read; what is behind them follows. Without it that is raised.
        wanted: only these.

    Raises:
        WireError: a line or a segment is damaged; says which.
        FolderError: the journal cannot be read.
    """
    with open_parts(path, wanted or JournalRange()) as parts:
        for part in parts:
            yield from part.events(on_bad)


@dataclass(frozen=True)
class JournalRange:
    """A part of a journal: everything, numbers `first`..`last` of one stream, or what follows numbers."""

    stream: str | None = None
    first: int = 1
    last: int | None = None
    after: Mapping[str, int] | None = None
    """Per stream, the number after which it begins; a stream that is missing here, from its first."""

    def segments(self, view: _OpenJournal) -> list[int]:
        """Numbers of the closed segments that may hold some of it."""
        if self.stream is None and not self.after:
            return view.numbers
        listed = {segment.number: segment for segment in view.folder.manifest().segments}
        return [n for n in view.numbers if n not in listed or self._overlaps(listed[n].streams)]

    def _overlaps(self, spans: Mapping[str, Span]) -> bool:
        if self.after:
            return any(span.last > self.after.get(stream, 0) for stream, span in spans.items())
        span = spans.get(self.stream or "")
        return span is not None and span.last >= self.first and (self.last is None or span.first <= self.last)

    def includes(self, line: bytes) -> bool:
        """True if a line is part of it; a line that cannot be read is."""
        if self.stream is None and not self.after:
            return True
        head = LINE_PREFIX.match(line)
        if head is None:
            return True
        seq = int(head[1])
        if self.after:
            return seq > self.after.get(head[2].decode(), 0)
        within = seq >= self.first and (self.last is None or seq <= self.last)
        return within and head[2].decode() == self.stream


@dataclass(frozen=True)
class JournalPart:
    """A segment of a journal: what one file holds."""

    number: int
    """Number of the segment; the next free one for the one that is written to now."""
    fingerprint: str | None
    """Changes with the file; None where the file may still grow or be compressed."""
    _file: Path
    _blocks: Callable[..., Iterator[bytes]]
    _wanted: JournalRange = JournalRange()

    def events(self, on_bad: Callable[[int, WireError], None] | None) -> Iterator[Event]:
        """Read its events, in the order written; see `read`.

        Raises:
            WireError: it is damaged, and there is no `on_bad`.
            FolderError: it cannot be read.
        """
        number = 0

        def on_damage(error: WireError) -> None:
            behind = WireError(f"{self._file}, after line {number}: {error}")
            if on_bad is None:
                raise behind
            on_bad(number + 1, behind)

        try:
            for number, line in enumerate(_lines(self._blocks(on_damage=on_damage)), start=1):
                if not self._wanted.includes(line):
                    continue
                try:
                    event = decode_line(line)
                except WireError as error:
                    if on_bad is None:
                        raise WireError(f"{self._file}, line {number}: {error}") from None
                    on_bad(number, error)
                    continue
                yield event
        except OSError as refused:
            raise FolderError(f"cannot read the journal {self._file}: {refused.strerror}") from None


@contextmanager
def open_parts(path: Path, wanted: JournalRange = JournalRange()) -> Iterator[list[JournalPart]]:
    """The segments of a journal, the oldest first, as they are at this moment.

    Args:
        wanted: only those that may hold some of it, and of these only that.

    Raises:
        FolderError: the journal cannot be read.
    """
    with _open(path) as view:
        folder, newest = view.folder, max(view.numbers, default=0)
        parts = [
            JournalPart(n, _fingerprint(folder, n), folder.packed(n), partial(folder.blocks, n), wanted)
            for n in wanted.segments(view)
        ]
        if view.hot is not None:
            parts.append(JournalPart(newest + 1, None, path, partial(_hot_blocks, view.hot), wanted))
        yield parts


def removed_boots(path: Path) -> JournalPart | None:
    """How boots began of what retention has removed, as a part before all others; None = none.

    These are the `run.started` events and the newest `run.provenance`.
    """
    folder = SegmentFolder(path)
    last = folder.manifest().removed.last.get("life", 0)
    if not last or not folder.boots_path.exists():
        return None
    return JournalPart(
        0, None, folder.boots_path, partial(_file_blocks, folder.boots_path), JournalRange("life", last=last)
    )


def _file_blocks(path: Path, *, on_damage: OnDamage) -> Iterator[bytes]:
    with open_regular(path) as file:
        yield from _hot_blocks(file, on_damage=on_damage)


def _fingerprint(folder: SegmentFolder, number: int) -> str | None:
    """Size and time of a compressed segment's file."""
    try:
        if folder.raw(number).exists():
            return None
        found = folder.packed(number).stat()
    except OSError:
        return None
    return f"{found.st_size}-{found.st_mtime_ns}"


def _hot_blocks(file: BinaryIO, *, on_damage: OnDamage) -> Iterator[bytes]:  # noqa: ARG001
    return iter(lambda: file.read(BLOCK_BYTES), b"")


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    carry = b""
    for block in blocks:
        lines = (carry + block).split(b"\n")
        carry = lines.pop()[:MAX_LINE_BYTES]
        yield from (line[:MAX_LINE_BYTES] for line in lines)


def lines_newest_first(path: Path, *, on_damage: OnDamage = lambda _: None) -> Iterator[bytes]:
    """Complete lines of all segments, the newest first; none where there is no journal.

    Args:
        path: of `events.jsonl`.
        on_damage: called for what cannot be read, and is left out.
    """
    try:
        view = _OpenJournal(path)
    except FileNotFoundError:
        return
    except OSError as error:
        on_damage(WireError(f"{path.name}: {error.strerror}"))
        return
    with closing(view):
        hot = lines_backwards(view.hot) if view.hot is not None else iter(())
        blocks = partial(view.folder.blocks_backwards, on_damage=on_damage)
        closed = map(blocks, reversed(view.numbers))
        try:
            for block in itertools.chain(hot, itertools.chain.from_iterable(closed)):
                yield from reversed(block.split(b"\n")[:-1])
        except OSError as error:
            on_damage(WireError(f"{path.name}: {error.strerror}"))


def newest_lines(path: Path, *, limit: int = 8 * 1024 * 1024) -> list[tuple[str, int, bytes]]:
    """The newest `limit` bytes of a journal's lines, as (stream, seq, line); empty without a journal."""
    found = []
    for line in lines_newest_first(path):
        limit -= len(line) + 1
        if limit < 0:
            break
        head = LINE_PREFIX.match(line)
        if head is not None:
            found.append((head[2].decode(), int(head[1]), line))
    return found[::-1]


def oldest_numbers(path: Path) -> dict[str, int]:
    """The oldest number that is held, per stream that retention has taken something of."""
    removed = SegmentFolder(path).manifest().removed.last
    return {stream: last + 1 for stream, last in removed.items()}


@dataclass(frozen=True)
class LastWords:
    """Facts of the run from its journal's tail."""

    ts: int
    round: int
    epoch: int
    state: str | None
    """The newest `run.state`; where the tail has none, TRAINING if it has a step of the loop, else None."""
    stopped: RunStopped | None
    """Set where the last boot ended in order."""


def last_words(
    path: Path, *, limit: int = 4 * 1024 * 1024, on_damage: OnDamage = lambda _: None
) -> LastWords | None:
    """Read the tail of a journal, back to the newest `run.state`; None where there is no event.

    Args:
        path: of `events.jsonl`.
        limit: bytes of the tail that are looked at.
        on_damage: called for what of it cannot be read.
    """
    newest: Event | None = None
    stopped: RunStopped | None = None
    has_step = False
    for line in lines_newest_first(path, on_damage=on_damage):
        limit -= len(line) + 1
        if limit < 0:
            break
        head = line[:128]
        has_step = has_step or b'"type":"epoch"' in head or b'"type":"scalar"' in head
        if newest is not None and b'"type":"run.' not in head:
            continue
        try:
            event = decode_line(line)
        except WireError as error:
            on_damage(error)
            continue
        newest = newest or event
        if event.type == "run.started":
            return _last_words_at(newest, "STARTING", stopped)
        if event.type == "run.state":
            return _last_words_at(newest, event.data.state, stopped)
        if event.type == "run.stopped" and stopped is None:
            stopped = event.data
    state = "TRAINING" if has_step else None  # another one would stand after it
    return None if newest is None else _last_words_at(newest, state, stopped)


def _last_words_at(newest: Event, state: str | None, stopped: RunStopped | None) -> LastWords:
    return LastWords(newest.ts, newest.ctx.round, newest.ctx.epoch, state, stopped)
