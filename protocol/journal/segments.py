"""The closed parts of a journal: their files, their index, their manifest, and how they are read.

    events.jsonl                       the hot segment, plain lines
    segments/events-000001.jsonl       closed, not compressed yet
    segments/events-000001.jsonl.zst   closed: independent zstd frames of complete lines
    segments/events-000001.index.json  where the frames begin, and sparsely which line is where
    segments/manifest.json             every compressed segment: numbers, times, bytes, sha256
    segments/boots.jsonl               lines that say how boots began, of what retention has removed

Where a plain and a compressed file of one number are both there, the plain one counts: it goes last.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard
from msgspec import Struct, field

from esper_overwatch.protocol.errors import WireError

from .line_files import BLOCK_BYTES, begin_of, lines_backwards, select_lines

logger = logging.getLogger(__name__)

FRAME_BYTES = 256 * 1024
"""Lines in one frame, about."""


class Span(Struct, frozen=True):
    """Numbers of one stream in a segment."""

    first: int
    last: int


class JournalSegment(Struct, frozen=True, kw_only=True):
    """A compressed segment, as the manifest has it."""

    number: int
    file: str
    bytes: int
    """Of the compressed file."""
    raw_bytes: int
    """Of the lines in it."""
    sha256: str
    """Of the compressed file."""
    from_ts: int
    to_ts: int
    streams: dict[str, Span]


class RemovedSegments(Struct, frozen=True):
    """Segments that retention has removed."""

    number: int = 0
    """Segments up to this one."""
    last: dict[str, int] = field(default_factory=dict)
    """The newest number removed, per stream."""


class Manifest(Struct, frozen=True):
    """`manifest.json`."""

    v: int = 1
    segments: tuple[JournalSegment, ...] = ()
    removed: RemovedSegments = RemovedSegments()


class SegmentIndex(Struct, frozen=True):
    """`events-000001.index.json`: offsets in the lines, and of the frames also in the compressed file."""

    bytes: int
    """Of the compressed file."""
    frames: list[tuple[int, int]]
    """(offset in the lines, offset in the file) of each frame."""
    streams: dict[str, list[tuple[int, int]]]
    """Sparse, per stream: (seq, offset in the lines)."""


@dataclass(frozen=True)
class SegmentFolder:
    """The closed segments beside a journal; nothing is held open, and nothing need be there.

    Args:
        journal: path of the hot segment.
    """

    journal: Path

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.journal.parent / "segments"

    @property
    def manifest_path(self) -> Path:
        """`manifest.json`."""
        return self.path / "manifest.json"

    def raw(self, number: int) -> Path:
        """A segment's file before it is compressed."""
        return self.path / f"{self.journal.stem}-{number:06d}.jsonl"

    def packed(self, number: int) -> Path:
        """A segment's compressed file."""
        return self.path / f"{self.journal.stem}-{number:06d}.jsonl.zst"

    def index_path(self, number: int) -> Path:
        """The index of a segment's compressed file."""
        return self.path / f"{self.journal.stem}-{number:06d}.index.json"

    @property
    def boots_path(self) -> Path:
        """`boots.jsonl`: by these lines later events are read, also where their segments are gone."""
        return self.path / "boots.jsonl"

    def numbers(self, *endings: str) -> list[int]:
        """Numbers of the segments on the disk, ascending; with these endings, or any of the two."""
        name = re.compile(re.escape(self.journal.stem) + r"-(\d+)(\.jsonl|\.jsonl\.zst)")
        try:
            found = [name.fullmatch(entry) for entry in os.listdir(self.path)]
        except OSError:
            return []
        return sorted({int(m[1]) for m in found if m and (not endings or m[2] in endings)})

    def manifest(self) -> Manifest:
        """The manifest; an empty one where it is missing or damaged (then the files count)."""
        try:
            return msgspec.json.decode(self.manifest_path.read_bytes(), type=Manifest)
        except (FileNotFoundError, NotADirectoryError):
            return Manifest()
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read (%s); the segments themselves are", self.manifest_path, error)
            return Manifest()

    def index(self, number: int) -> SegmentIndex | None:
        """The index of a compressed segment; None where it is missing or damaged."""
        try:
            return msgspec.json.decode(self.index_path(number).read_bytes(), type=SegmentIndex)
        except (OSError, msgspec.DecodeError):
            return None

    def open(self, number: int) -> tuple[BinaryIO, bool] | None:
        """(file, whether it is compressed) of a segment; None where retention has taken it.

        Raises:
            OSError: it is there and cannot be opened.
        """
        for path, packed in ((self.raw(number), False), (self.packed(number), True)):
            try:
                return path.open("rb"), packed
            except FileNotFoundError:
                continue
        return None

    def blocks(self, number: int, *, on_damage: Callable[[WireError], None] | None = None) -> Iterator[bytes]:
        """The lines of a segment in pieces, from its beginning; none where retention has taken it.

        Args:
            on_damage: called where frames are torn or damaged, before the piece behind them, which begins
                with a complete line; without it that is raised.

        Raises:
            OSError: it cannot be read.
            WireError: the compressed file is torn or damaged; what came before it is complete lines.
        """
        opened = self.open(number)
        if opened is None:
            return
        file, packed = opened
        with file:
            if not packed:
                yield from iter(lambda: file.read(BLOCK_BYTES), b"")
                return
            yield from _frames_around_damage(file, self.index(number), on_damage or _raise)

    def blocks_backwards(self, number: int) -> Iterator[bytes]:
        """Pieces of complete lines, the newest first; those behind a damage are left out."""
        opened = self.open(number)
        if opened is None:
            return
        file, packed = opened
        with file:
            if not packed:
                yield from lines_backwards(file)
                return
            index = self.index(number)
            if index is None:
                yield from reversed(list(_undamaged(file, None)))
                return
            ends = [offset for _, offset in index.frames[1:]] + [index.bytes]
            for (_, begin), end in zip(reversed(index.frames), reversed(ends), strict=True):
                file.seek(begin)
                try:
                    yield unpack(file.read(end - begin))
                except WireError:
                    continue

    def range(
        self, number: int, stream: str, first: int, last: int, *, limit: int, scan: int
    ) -> list[tuple[int, bytes]]:
        """`pick` from a compressed segment, looking through no more than about `scan` bytes of lines.

        Raises:
            OSError: it cannot be read.
        """
        index = self.index(number)
        with self.packed(number).open("rb") as file:
            if index is None:
                return select_lines(_undamaged(file, None), stream, first, last, limit=limit)
            begin = begin_of(index.streams.get(stream, []), first)
            if begin is None:
                return []
            at = bisect.bisect_right(index.frames, (begin, index.bytes)) - 1
            raw_offset, offset = index.frames[at]
            file.seek(offset)
            blocks = itertools.islice(_undamaged(file, index), 1 + scan // FRAME_BYTES)
            head = next(blocks, b"")[begin - raw_offset :]
            return select_lines(_chained(head, blocks), stream, first, last, limit=limit)


def _raise(error: WireError) -> None:
    raise error


def _frames_around_damage(
    file: BinaryIO, index: SegmentIndex | None, on_damage: Callable[[WireError], None]
) -> Iterator[bytes]:
    """The content of each frame; behind a damage it goes on with the next that can be read.

    Args:
        index: says whether frames are missing at the end; None = that is not known.
    """
    at, is_damaged = file.tell(), False
    while True:
        try:
            for begin, size, content in whole_frames(file):
                at, is_damaged = begin + size, False
                yield content
        except WireError as error:
            if not is_damaged:
                on_damage(error)
            is_damaged = True
            next_at = _find_frame(file, at + 1)
            if next_at is None:
                return
            at = next_at
            file.seek(at)
            continue
        if index is not None and at != index.bytes and not is_damaged:
            on_damage(WireError(f"it ends after {at} of {index.bytes} bytes"))
        return


def _find_frame(file: BinaryIO, begin: int) -> int | None:
    """Offset where the next frame may begin, at `begin` or behind it; None where none does.

    Lines are UTF-8, in which the magic number cannot occur; in compressed bytes it may, by chance.
    """
    file.seek(begin)
    carry = b""
    while block := file.read(BLOCK_BYTES):
        data = carry + block
        found = data.find(zstandard.FRAME_HEADER)
        if found >= 0:
            return begin - len(carry) + found
        begin += len(block)
        carry = data[-len(zstandard.FRAME_HEADER) + 1 :]
    return None


def _chained(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from blocks


def whole_frames(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(offset, size, content) of each zstd frame from where the file stands.

    Raises:
        WireError: a frame is torn or damaged; the ones before it were given.
    """
    at, rest = file.tell(), b""
    while data := rest or file.read(BLOCK_BYTES):
        decoder = zstandard.ZstdDecompressor().decompressobj()
        parts, size = [], 0
        while True:
            size += len(data)
            try:
                parts.append(decoder.decompress(data))
            except zstandard.ZstdError as error:
                raise WireError(f"the frame at byte {at} is damaged: {error}") from None
            if decoder.eof:
                break
            data = file.read(BLOCK_BYTES)
            if not data:
                raise WireError(f"the frame at byte {at} is torn")
        rest = decoder.unused_data
        size -= len(rest)
        yield at, size, b"".join(parts)
        at += size


def unpack(frame: bytes) -> bytes:
    """The content of one frame.

    Raises:
        WireError: it is torn or damaged.
    """
    try:
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise WireError(f"a damaged frame: {error}") from None


def _undamaged(file: BinaryIO, index: SegmentIndex | None) -> Iterator[bytes]:
    return _frames_around_damage(file, index, lambda error: logger.warning("%s: %s", file.name, error))
