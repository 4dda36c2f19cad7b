"""The journal's second thread: compresses closed segments, and removes the oldest where there are too many.

Each step leaves files from which the next start goes on; killed between any two, the journal reads complete:

1. `.events-000001.jsonl.zst.part` is written and on the disk,
2. `events-000001.index.json`, 3. the part gets its name, 4. the manifest names it, 5. the plain file goes.

Retention keeps the segment's `run.started` lines and the newest `run.provenance`, which is large, takes the
segment out of the manifest, then off the disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
from collections import deque
from pathlib import Path

import msgspec
import zstandard

from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.storage.folders import open_private, sync_folder, write_atomically

from .line_files import BLOCK_BYTES, HEAD_BYTES, LineIndex, repair
from .segments import (
    FRAME_BYTES,
    JournalSegment,
    Manifest,
    RemovedSegments,
    SegmentFolder,
    SegmentIndex,
    whole_frames,
)

logger = logging.getLogger(__name__)

COMPRESSION_LEVEL = 1
CLOSE_SECONDS = 5.0
_STARTED = b'"type":"run.started"'
_PROVENANCE = b'"type":"run.provenance"'


class _Abandoned(Exception):
    """The journal is closed; the next start does it again."""


class Compactor:
    """Closed segments of one journal.

    Args:
        folder: of the segments; need not exist.
        keep_bytes: for all closed segments together; 0 = all are kept.

    Raises:
        OSError: a segment that is there cannot be read.
        FolderError: what a crash left behind cannot be written down.
    """

    def __init__(self, folder: SegmentFolder, *, keep_bytes: int) -> None:
        self._folder = folder
        self._keep_bytes = keep_bytes
        self.manifest = folder.manifest()
        """Replaced, never changed, by the thread."""
        self.pending: dict[int, LineIndex] = {}
        """Closed and not compressed yet; a segment leaves it after it has entered the manifest."""
        self.removed: deque[JournalSegment] = deque()
        """Taken by retention; the owner reports them."""
        self.error: str | None = None
        """Why compressing failed last; the plain segment stays and is tried again."""
        self._queue: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._abandon = threading.Event()
        self._thread: threading.Thread | None = None
        self._recover()
        listed = [segment.number for segment in self.manifest.segments]
        self.newest = max([self.manifest.removed.number, *listed, *self.pending])
        """The highest number given to a closed segment; 0 before the first."""

    @property
    def bytes(self) -> int:
        """Size of all compressed segments."""
        return sum(segment.bytes for segment in self.manifest.segments)

    @property
    def last(self) -> dict[str, int]:
        """The newest number per stream in what is closed, or was; for the start."""
        last = dict(self.manifest.removed.last)
        for segment in self.manifest.segments:
            last.update({stream: span.last for stream, span in segment.streams.items()})
        for _, index in sorted(self.pending.items()):
            last.update(index.last)
        return last

    def take(self, number: int, index: LineIndex) -> None:
        """Take over a segment that has just been closed."""
        self.newest = number
        self.pending[number] = index
        self.wake()

    def resume(self) -> None:
        """Go on with what an earlier process left."""
        if self.pending or self._exceeds_limit:
            self.wake()

    def wake(self) -> None:
        """Have the thread do its work; it begins with the first call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="esper-segments", daemon=True)
            self._thread.start()
        self._queue.put(True)

    def close(self) -> None:
        """Let the thread finish for a while, then break it off; the next start goes on."""
        if self._thread is None:
            return
        self._queue.put(False)
        self._thread.join(CLOSE_SECONDS)
        self._abandon.set()
        self._thread.join()
        self._thread = None

    def _main(self) -> None:
        while self._queue.get():
            self.work()

    def work(self) -> None:
        """Compress what is pending, then keep within the bytes; errors are logged and kept in `error`."""
        self.error = None
        for step in (self._compress_pending, self._retain):
            try:
                step()
            except _Abandoned:
                return
            except (OSError, FolderError) as error:
                self.error = str(error)
                logger.error("%s: %s; it is tried again with the next segment", self._folder.path, error)

    def _compress_pending(self) -> None:
        for number, index in sorted(self.pending.items()):
            self._compress(number, index)

    def _compress(self, number: int, index: LineIndex) -> None:
        folder = self._folder
        part = folder.path / f".{folder.packed(number).name}.part"
        frames, raw_bytes, size, sha256 = self._pack(folder.raw(number), part)
        self._write_index(number, SegmentIndex(bytes=size, frames=frames, streams=index.entries))
        os.replace(part, folder.packed(number))
        sync_folder(folder.path)
        self._enter(number, index, raw_bytes=raw_bytes, size=size, sha256=sha256)
        del self.pending[number]
        folder.raw(number).unlink()

    def _write_index(self, number: int, index: SegmentIndex) -> None:
        write_atomically(self._folder.index_path(number), msgspec.json.encode(index))

    def _pack(self, raw: Path, part: Path) -> tuple[list[tuple[int, int]], int, int, str]:
        """Compress a file of lines; gives the frames, the bytes of the lines and of the file, its sha256."""
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
        digest = hashlib.sha256()
        frames: list[tuple[int, int]] = []
        raw_offset = offset = 0
        with raw.open("rb") as source, open(part, "wb", buffering=0, opener=open_private) as target:
            while lines := source.read(FRAME_BYTES) + source.readline():
                if self._abandon.is_set():
                    raise _Abandoned
                frame = compressor.compress(lines)
                frames.append((raw_offset, offset))
                digest.update(frame)
                raw_offset += len(lines)
                offset += len(frame)
                while frame:
                    frame = frame[target.write(frame) :]
            os.fsync(target.fileno())
        return frames, raw_offset, offset, digest.hexdigest()

    def _enter(self, number: int, index: LineIndex, *, raw_bytes: int, size: int, sha256: str) -> None:
        """Have the manifest name a compressed segment."""
        segment = JournalSegment(
            number=number,
            file=self._folder.packed(number).name,
            bytes=size,
            raw_bytes=raw_bytes,
            sha256=sha256,
            from_ts=index.from_ts,
            to_ts=index.to_ts,
            streams=index.spans,
        )
        segments = {one.number: one for one in self.manifest.segments} | {number: segment}
        ordered = tuple(segments[number] for number in sorted(segments))
        self._replace_manifest(Manifest(segments=ordered, removed=self.manifest.removed))

    def _replace_manifest(self, manifest: Manifest) -> None:
        content = msgspec.json.format(msgspec.json.encode(manifest))
        write_atomically(self._folder.manifest_path, content)
        self.manifest = manifest

    @property
    def _exceeds_limit(self) -> bool:
        return 0 < self._keep_bytes < self.bytes

    def _retain(self) -> None:
        while self._exceeds_limit:
            gone, *kept = self.manifest.segments
            self._keep_boots(gone)
            last = {stream: span.last for stream, span in gone.streams.items()}
            removed = RemovedSegments(gone.number, {**self.manifest.removed.last, **last})
            self._replace_manifest(Manifest(segments=tuple(kept), removed=removed))
            self._unlink(gone.number)
            self.removed.append(gone)

    def _keep_boots(self, segment: JournalSegment) -> None:
        """Append the segment's lines that say how a boot began to those of the segments before."""
        if "life" not in segment.streams:
            return
        path = self._folder.boots_path
        content = path.read_bytes() if path.exists() else b""
        kept = content.splitlines()
        known = set(kept)  # of a step that was killed
        blocks = self._folder.blocks(segment.number, on_damage=lambda _: None)
        wanted = (block for block in blocks if _STARTED in block or _PROVENANCE in block)
        heads = ((line, line[:HEAD_BYTES]) for block in wanted for line in block.splitlines())
        found = [line for line, head in heads if _STARTED in head or _PROVENANCE in head]
        newest = [line for line in kept + found if _PROVENANCE in line[:HEAD_BYTES]][-1:]
        lines = kept + [line for line in found if line not in known]
        lines = [line for line in lines if _STARTED in line[:HEAD_BYTES] or line in newest]
        if lines != kept:
            write_atomically(path, b"".join(line + b"\n" for line in lines))

    def _unlink(self, number: int) -> None:
        self._folder.index_path(number).unlink(missing_ok=True)
        self._folder.packed(number).unlink(missing_ok=True)

    def _recover(self) -> None:
        """Take up what a killed process left: plain files, unlisted ones, half-removed ones, parts."""
        folder = self._folder
        known = {segment.number for segment in self.manifest.segments}
        for part in folder.path.glob(".*"):
            part.unlink()
        for number in folder.numbers(".jsonl"):
            with open(folder.raw(number), "r+b", opener=open_private) as file:
                repair(file.fileno())
                self.pending[number] = index = LineIndex()
                index.scan(iter(lambda: file.read(BLOCK_BYTES), b""))
        for number in folder.numbers(".jsonl.zst"):
            if number <= self.manifest.removed.number:
                self._unlink(number)
            elif number not in known and number not in self.pending:
                self._relist(number)
        missing = [s for s in self.manifest.segments if _size(folder.packed(s.number)) != s.bytes]
        for segment in missing:
            if segment.number not in self.pending:
                logger.error("%s/%s is damaged or missing", folder.path, segment.file)

    def _relist(self, number: int) -> None:
        """Put a compressed segment that the manifest does not know into it, with a new index."""
        frames: list[tuple[int, int]] = []
        parts: list[bytes] = []
        raw_offset = end = 0
        path = self._folder.packed(number)
        with path.open("rb") as file:
            try:
                for begin, size, content in whole_frames(file):
                    frames.append((raw_offset, begin))
                    parts.append(content)
                    raw_offset, end = raw_offset + len(content), begin + size
            except WireError as error:
                logger.error("%s: %s", path, error)
        index = LineIndex()
        index.scan(parts)
        self._write_index(number, SegmentIndex(bytes=end, frames=frames, streams=index.entries))
        packed = path.read_bytes()
        sha256 = hashlib.sha256(packed).hexdigest()
        self._enter(number, index, raw_bytes=raw_offset, size=len(packed), sha256=sha256)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
