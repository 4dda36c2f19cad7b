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

import zstandard
from msgspec import Struct, field

from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.storage.folders import open_regular
from esper_overwatch.protocol.storage.records import read_record

from .line_files import BLOCK_BYTES, MAX_LINE_BYTES, Span, begin_of, lines_backwards, select_lines

logger = logging.getLogger(__name__)

OnDamage = Callable[[WireError], None]

FRAME_BYTES = 256 * 1024
"""Lines in one frame, about."""
MAX_FRAME_BYTES = FRAME_BYTES + MAX_LINE_BYTES
"""Lines in one frame, at most, and the frame itself: what is larger, another has made."""
_MAX_HEADER_BYTES, _BLOCK_HEADER_BYTES, _CHECKSUM_BYTES, _REPEATED_BYTE = 18, 3, 4, 1
"""Of a zstd frame (RFC 8878, 3.1.1); the last is the type of a block that is one byte."""


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

    @property
    def is_plausible(self) -> bool:
        """True if there may be such a file: bounded frames, one behind the other from its beginning."""
        ends = itertools.pairwise([offset for _, offset in self.frames] + [self.bytes])
        return (
            self.frames[:1] == [(0, 0)]
            and all(0 < end - begin <= MAX_FRAME_BYTES for begin, end in ends)
            and all(begin < end for (begin, _), (end, _) in itertools.pairwise(self.frames))
            and all(offset >= 0 for entries in self.streams.values() for _, offset in entries)
        )


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
            return read_record(self.manifest_path, Manifest)
        except (FileNotFoundError, NotADirectoryError):
            return Manifest()
        except (OSError, WireError) as error:
            logger.warning("%s cannot be read (%s); the segments themselves are", self.manifest_path, error)
            return Manifest()

    def index(self, number: int) -> SegmentIndex | None:
        """The index of a compressed segment; None where it is missing or damaged."""
        try:
            index = read_record(self.index_path(number), SegmentIndex)
        except (OSError, WireError):
            return None
        return index if index.is_plausible else None

    def _opened(self, number: int) -> Iterator[tuple[BinaryIO, bool]]:
        """(file, whether it is compressed) of a segment, open meanwhile; none where retention has taken it.

        Raises:
            OSError: it is there and cannot be opened.
        """
        for path, packed in ((self.raw(number), False), (self.packed(number), True)):
            try:
                file = open_regular(path)
            except FileNotFoundError:
                continue
            with file:
                yield file, packed
            return

    def blocks(self, number: int, *, on_damage: OnDamage) -> Iterator[bytes]:
        """The lines of a segment in pieces, from its beginning; none where retention has taken it.

        Args:
            on_damage: called where frames are torn or damaged, before the piece behind them, which begins
                with a complete line.

        Raises:
            OSError: it cannot be read.
        """
        for file, packed in self._opened(number):
            if not packed:
                while block := file.read(BLOCK_BYTES):
                    yield block
                return
            for _, _, content in _frames_around_damage(file, self.index(number), on_damage):
                yield content

    def blocks_backwards(self, number: int, *, on_damage: OnDamage) -> Iterator[bytes]:
        """Pieces of complete lines, the newest first; of a damaged frame there is none.

        Args:
            on_damage: called where a frame is torn or damaged.
        """

        def tell(error: WireError) -> None:
            on_damage(WireError(f"{self.packed(number).name}: {error}"))

        for file, packed in self._opened(number):
            if not packed:
                yield from lines_backwards(file)
                return
            index = self.index(number)
            if index is None:
                frames = [(at, size) for at, size, _ in _frames_around_damage(file, None, tell)]
            else:
                begins = [offset for _, offset in index.frames]
                ends = [*begins[1:], index.bytes]
                frames = [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
            for at, size in reversed(frames):
                file.seek(at)
                try:
                    yield unpack(file.read(size))
                except WireError as error:
                    tell(WireError(f"the frame at byte {at} is damaged: {error}"))

    def range(
        self, number: int, stream: str, first: int, last: int, *, limit: int, scan: int
    ) -> list[tuple[int, bytes]]:
        """`pick` from a compressed segment, looking through no more than about `scan` bytes of lines.

        Raises:
            OSError: it cannot be read.
        """
        index = self.index(number)
        with open_regular(self.packed(number)) as file:
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
            return select_lines(itertools.chain([head], blocks), stream, first, last, limit=limit)


def _frames_around_damage(
    file: BinaryIO, index: SegmentIndex | None, on_damage: OnDamage
) -> Iterator[tuple[int, int, bytes]]:
    """(offset, size, content) of each frame; behind a damage it goes on with the next that can be read.

    Args:
        index: says whether frames are missing at the end; None = that is not known.
    """
    at, is_damaged = file.tell(), False
    while True:
        try:
            for begin, size, content in whole_frames(file):
                at, is_damaged = begin + size, False
                yield begin, size, content
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


def whole_frames(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(offset, size, content) of each zstd frame from where the file stands.

    Raises:
        WireError: a frame is torn or damaged; the ones before it were given.
    """
    at = file.tell()
    while frame := _read_frame(file, at):
        try:
            content = unpack(frame)
        except WireError as error:
            raise WireError(f"the frame at byte {at} is damaged: {error}") from None
        yield at, len(frame), content
        at += len(frame)


def _read_frame(file: BinaryIO, at: int) -> bytes:
    """The bytes of the frame at `at`, whose end the sizes of its blocks tell; none at the file's end.

    Raises:
        WireError: it is torn, or no frame of a journal.
    """
    file.seek(at)
    head = file.read(_MAX_HEADER_BYTES)
    if not head:
        return b""
    try:
        size = zstandard.frame_header_size(head)
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
    except zstandard.ZstdError as error:
        raise WireError(f"the frame at byte {at} is damaged: {error}") from None
    is_last = False
    while not is_last:
        file.seek(at + size)
        header = file.read(_BLOCK_HEADER_BYTES)
        block = int.from_bytes(header, "little")
        is_last, kind = bool(block & 1) or len(header) < _BLOCK_HEADER_BYTES, block >> 1 & 3
        size += _BLOCK_HEADER_BYTES + (1 if kind == _REPEATED_BYTE else block >> 3)
        if size > MAX_FRAME_BYTES:
            raise WireError(f"the frame at byte {at} has more than {MAX_FRAME_BYTES} bytes")
    size += _CHECKSUM_BYTES * has_checksum
    file.seek(at)
    frame = file.read(size)
    if len(frame) < size:
        raise WireError(f"the frame at byte {at} is torn")
    return frame


def unpack(frame: bytes) -> bytes:
    """The content of one frame, which takes as much memory as the frame declares, and no more.

    Raises:
        WireError: it is torn or damaged, or declares nothing, or more than a frame of a journal has.
    """
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise WireError(f"{size} bytes are declared, at most {MAX_FRAME_BYTES} are read")
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise WireError(str(error)) from None


def _undamaged(file: BinaryIO, index: SegmentIndex | None) -> Iterator[bytes]:
    frames = _frames_around_damage(file, index, lambda error: logger.warning("%s: %s", file.name, error))
    return (content for _, _, content in frames)
