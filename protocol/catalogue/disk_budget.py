"""What journals of ended runs may take of the disk: the oldest lose their oldest segments first.

Runs that live, and those with the tag `pinned`, lose nothing. Of the others the newest segment, which is not
compressed, checkpoints and everything else stays, and so does what the journal says of each boot.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from esper_overwatch.protocol.journal.compactor import Compactor
from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.protocol.runs import LOCK_FILE
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, StrPath, esper_home
from esper_overwatch.protocol.storage.lock import Lock, LockHeld

from .catalogue import Catalogue

logger = logging.getLogger(__name__)

PINNED = "pinned"
"""Tag of a run that loses nothing."""


class FreedRun(NamedTuple):
    """A run whose journal has lost segments, and their bytes."""

    name: str
    bytes: int


def keep_within(share: float, home: StrPath | None = None) -> list[FreedRun]:
    """Remove segments of ended runs until those that are left take at most a share of the disk.

    Args:
        share: of the file system that holds the runs, 0 to 1; of the segments of all ended, unpinned runs
            together.
        home: instead of `$ESPER_HOME`.

    Raises:
        OSError: the home folder cannot be looked at.
        FolderError: the home folder has no usable name, or segments of a run cannot be removed.
    """
    catalogue = Catalogue(home)
    entries = catalogue.entries()
    folders = [
        catalogue.folder(entry)
        for entry in reversed(entries)  # the one that started first goes first
        if entry.name not in catalogue.live and PINNED not in entry.tags
    ]
    sizes = {folder: _segment_bytes(folder) for folder in folders}
    excess = sum(sizes.values()) - int(share * shutil.disk_usage(esper_home(home)).total)
    freed = []
    for folder, size in sizes.items():
        if excess <= 0:
            break
        if size and (bytes_ := _free(folder, size - excess)):
            excess -= bytes_
            freed.append(FreedRun(folder.name, bytes_))
            logger.info("run %s: %d bytes of its journal removed: journal.keep_share", folder.name, bytes_)
    return freed


def _segment_bytes(folder: Path) -> int:
    return sum(segment.bytes for segment in SegmentFolder(folder / EVENTS_FILE).manifest().segments)


def _free(folder: Path, keep: int) -> int:
    """Remove the oldest segments beyond `keep` bytes, where nobody holds the run; gives their number."""
    try:
        lock = Lock(folder / LOCK_FILE)
    except LockHeld:
        return 0
    try:
        with closing(Compactor(SegmentFolder(folder / EVENTS_FILE), keep_bytes=max(1, keep))) as compactor:
            before = compactor.bytes
            compactor.work()
            return before - compactor.bytes
    finally:
        lock.release()
