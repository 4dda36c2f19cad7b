"""The lives of seeds of settled rounds, kept as Parquet files beside the tables of the segments.

A round is settled when it has ended in a compressed segment and no later boot has gone back to it. Each file
has the rounds that one more segment settles; its name has those rounds, and a hash of the segments that they
are from. So a query computes the lives of what is new, and reads the others.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from tempfile import mkstemp

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from .event_columns import PartSummary, place_after
from .event_views import Boots
from .part_cache import ABANDONED_SECONDS, SEEDS_FOLDER, JournalTables
from .seed_view import seeds_of_rounds

logger = logging.getLogger(__name__)

Evaluate = Callable[[str], pa.Table]
"""Runs SQL over the tables of the journal."""


def settled_rounds(numbers: Sequence[int], summaries: Sequence[PartSummary], boots: Boots) -> list[int]:
    """After each part of a journal, the last round that no later event can change.

    Args:
        numbers: of the parts.
        summaries: of them.
        boots: of the complete journal.
    """
    starts = [
        (boot.place, start[0])
        for boot, start in zip(boots.all, boots.starts, strict=True)
        if start is not None
    ]
    happened = sorted(
        [(place, True, round_) for place, round_ in starts]
        + [(one.place, False, one.round) for summary in summaries for one in summary.finished]
    )
    settled = []
    for number in numbers:
        end, last = place_after(number), 0
        for place, is_start, round_ in happened:
            if is_start:
                last = min(last, round_ - 1)
            elif place < end:
                last = max(last, round_)
        settled.append(max(0, last))
    return settled


class SeedCache:
    """Cached tables of a journal's seeds.

    Attributes:
        settled: the last of the rounds whose lives are in `files`.
        files: in the order of rounds.
    """

    def __init__(self, tables: JournalTables, boots: Boots, evaluate: Evaluate) -> None:
        self.settled = 0
        self.files: list[Path] = []
        self._folder = tables.cache / SEEDS_FOLDER
        kept = list(takewhile(lambda name: name is not None, tables.kept))
        names = [name for name in kept if name is not None]
        numbers = [int(name.partition("-")[0]) for name in names]
        for i, last in enumerate(settled_rounds(numbers, tables.summaries, boots)):
            if last <= self.settled:
                continue
            of = [
                name
                for name, summary in zip(names[: i + 1], tables.summaries, strict=False)
                if summary.last_round > self.settled
            ]
            if not self._add(last, of, evaluate):
                break
        self._remove_others()

    def dataset(self) -> ds.Dataset:
        """The rows of all files."""
        return ds.dataset([str(path) for path in self.files], format="parquet")

    def _add(self, last: int, segments: Sequence[str], evaluate: Evaluate) -> bool:
        """Take in the rounds up to this one, which are computed where they are not kept; whether they are."""
        first = self.settled + 1 if self.files else 0
        sources = hashlib.sha256(" ".join(segments).encode()).hexdigest()[:16]
        path = self._folder / f"{first:08d}-{last:08d}-{sources}.parquet"
        if not _is_whole(path):
            table = evaluate(seeds_of_rounds(first, last))
            try:
                self._write(path, table)
            except OSError as error:
                logger.debug("%s: %s; seeds are computed at each query", path, error.strerror)
                return False
        self.files.append(path)
        self.settled = last
        return True

    def _write(self, path: Path, table: pa.Table) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, new = mkstemp(dir=self._folder, prefix=".")
        os.close(descriptor)
        try:
            with open(new, "wb") as file:
                pq.write_table(table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(new)
            raise

    def _remove_others(self) -> None:
        with suppress(OSError):
            for path in self._folder.glob("*.parquet"):
                if path not in self.files:
                    path.unlink(missing_ok=True)
            abandoned = time.time() - ABANDONED_SECONDS
            for path in self._folder.glob(".*"):
                if path.stat().st_mtime < abandoned:
                    path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """True if a file is complete to its end, where Parquet keeps its directory."""
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return True
