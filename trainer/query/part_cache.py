"""Tables of a journal's parts: those of compressed segments kept as Parquet files, the others in memory.

    cache/query-<schema>/000001-<fingerprint>/{raw,epoch,...}.parquet   the tables of a compressed segment
    cache/query-<schema>/000001-<fingerprint>/summary.json             the rest; the folder is renamed then

A compressed segment does not change, nor does the last one of a run that has ended, so that each is read
once; later queries read columns. The folder may be deleted at any time. Where it cannot be written, all
tables are in memory. A folder of which a file is missing or has changed its size is written again.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.journal.reader import JournalPart, open_parts, removed_boots
from esper_overwatch.protocol.messages.schema import schema_hash
from esper_overwatch.protocol.runs import LOCK_FILE
from esper_overwatch.protocol.storage.folders import CACHE_FOLDER, replace_file, sync_folder
from esper_overwatch.protocol.storage.lock import holder_of
from esper_overwatch.protocol.storage.records import read_record

from .event_columns import RAW, SCHEMAS, EventColumns, PartSummary

logger = logging.getLogger(__name__)

CACHE_VERSION = 6
"""Raised when the files have another form."""
_SUMMARY = "summary.json"
MIN_KEPT_BYTES = 64 * 1024
"""Least size of an ended run's last segment whose tables are kept: a small one is as soon read."""
ABANDONED_SECONDS = 24 * 3600
"""Age from which an unfinished folder is taken for that of a process that is gone."""
Watch = Callable[[Iterator[Event]], Iterator[Event]]


class _Kept(msgspec.Struct, frozen=True):
    """`summary.json`."""

    summary: PartSummary
    sizes: dict[str, int]
    """Bytes of each of the other files."""


@dataclass
class JournalTables:
    """All parts of a journal.

    Attributes:
        summaries: of the parts, the oldest first.
    """

    summaries: list[PartSummary] = field(default_factory=list)
    _files: dict[str, list[str]] = field(default_factory=dict)
    _batches: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)

    def dataset(self, table: str) -> ds.Dataset:
        """Rows of a table in the order of the journal; the files are read when they are asked for."""
        schema = SCHEMAS[table]
        kept = ds.dataset(self._files.get(table, []), schema=schema, format="parquet")
        waiting = pa.Table.from_batches(self._batches.get(table, []), schema=schema)
        return ds.dataset([kept, ds.dataset(waiting)])

    def add_kept(self, folder: Path, summary: PartSummary) -> None:
        """Take in a segment whose tables are files."""
        self.summaries.append(summary)
        for table in summary.rows:
            self._files.setdefault(table, []).append(str(folder / f"{table}.parquet"))

    def add_batch(self, table: str, batch: pa.RecordBatch) -> None:
        """Take in rows in memory."""
        self._batches.setdefault(table, []).append(batch)


def read_tables(journal: Path, watch: Watch) -> JournalTables:
    """The tables of a journal; segments that were compressed since the last time are read and kept.

    Args:
        journal: path of the hot segment.
        watch: passes on events that are read; may raise.

    Raises:
        FolderError: the journal cannot be read.
    """
    cache = _cache_of(journal)
    tables = JournalTables()
    known = set[str]()
    is_link = cache.is_symlink() or cache.parent.is_symlink()  # to a folder in which nothing is to change
    rest = _fingerprint_of_rest(journal)
    with open_parts(journal) as parts:
        for part in parts:
            fingerprint = part.fingerprint or (rest if part is parts[-1] else None)
            if fingerprint is not None and not is_link:
                folder = cache / f"{part.number:06d}-{fingerprint}"
                known.add(folder.name)
                summary = _kept(folder) or _keep(part, folder, watch)
                if summary is not None:
                    tables.add_kept(folder, summary)
                    continue
            tables.summaries.append(EventColumns(tables.add_batch).read(part, watch))
    if not is_link:
        _remove_others(cache, known)
    earlier = removed_boots(journal)
    if earlier is not None and tables.summaries:
        known_boots = {boot.boot for summary in tables.summaries for boot in summary.boots}

        def watch_others(events: Iterator[Event]) -> Iterator[Event]:
            return (event for event in watch(events) if getattr(event.data, "boot", None) not in known_boots)

        columns = EventColumns(lambda table, batch: tables.add_batch(table, batch) if table != RAW else None)
        first = tables.summaries[0]
        first.boots = columns.read(earlier, watch_others).boots + first.boots
    return tables


def count_segments(journal: Path) -> tuple[int, int]:
    """Count the compressed segments of a journal that have been read and kept, and all of them.

    Raises:
        FolderError: the journal cannot be read.
    """
    cache = _cache_of(journal)
    with open_parts(journal) as parts:
        names = [f"{part.number:06d}-{part.fingerprint}" for part in parts if part.fingerprint is not None]
    return sum((cache / name / _SUMMARY).exists() for name in names), len(names)


def _fingerprint_of_rest(journal: Path) -> str | None:
    """Size and time of an ended run's last segment, which is not compressed; None where it may still grow.

    Where the run goes on it is another file by that: it only grows, or is compressed.
    """
    lock = journal.parent / LOCK_FILE
    if not lock.exists() or holder_of(lock) is not None:
        return None
    try:
        found = journal.stat()
    except OSError:
        return None
    return f"{found.st_size}-{found.st_mtime_ns}" if found.st_size >= MIN_KEPT_BYTES else None


def _cache_of(journal: Path) -> Path:
    return journal.parent / CACHE_FOLDER / f"query-{schema_hash()[:8]}-{CACHE_VERSION}"


def _kept(folder: Path) -> PartSummary | None:
    """Summary of a segment whose tables are all there, and whole; else None."""
    try:
        kept = read_record(folder / _SUMMARY, _Kept)
        return kept.summary if _sizes(folder) == kept.sizes else None
    except (OSError, WireError):
        return None


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*.parquet")}


def _keep(part: JournalPart, folder: Path, watch: Watch) -> PartSummary | None:
    """Write the tables of a segment; None where the disk refuses."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        logger.debug("%s: %s; tables are kept in memory", folder, error.strerror)
        return None
    writers: dict[str, pq.ParquetWriter] = {}

    def write(table: str, batch: pa.RecordBatch) -> None:
        if table not in writers:
            writers[table] = pq.ParquetWriter(new / f"{table}.parquet", SCHEMAS[table], compression="zstd")
        writers[table].write_batch(batch)

    try:
        try:
            summary = EventColumns(write).read(part, watch)
        finally:
            for writer in writers.values():
                writer.close()
        _complete(new, summary)
        if _kept(folder) is None:  # what is there is not whole
            shutil.rmtree(folder, ignore_errors=True)
        os.replace(new, folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        if _kept(folder) is not None:  # another query was faster
            return _kept(folder)
        logger.debug("%s: %s; tables are kept in memory", folder, error.strerror)
        return None
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return summary


def _complete(folder: Path, summary: PartSummary) -> None:
    """Bring the tables onto the disk, and the summary, which says that they are there."""
    for table in summary.rows:
        with (folder / f"{table}.parquet").open("rb") as file:
            os.fsync(file.fileno())
    replace_file(folder / _SUMMARY, msgspec.json.encode(_Kept(summary, _sizes(folder))))
    sync_folder(folder)


def _remove_others(cache: Path, known: set[str]) -> None:
    """Remove tables of segments that are gone or have changed, those of another version, and what was left
    half made."""
    with suppress(OSError):
        for other in cache.parent.glob("query-*"):
            if other != cache:
                shutil.rmtree(other, ignore_errors=True)
        abandoned = time.time() - ABANDONED_SECONDS
        for entry in cache.iterdir():
            is_half_made = entry.name.startswith(".") and entry.stat().st_mtime > abandoned
            if entry.name not in known and not is_half_made:
                shutil.rmtree(entry, ignore_errors=True)
