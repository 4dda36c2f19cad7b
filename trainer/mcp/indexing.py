"""Reads journals' segments for `query`, once, in threads that go on when a tool has given its answer.

An assistant's client waits a minute or so for a tool; the first query of a long journal may take longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.query.database import QueryError


class JournalIndexer:
    """One thread per journal that has segments to be read. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Path, threading.Thread] = {}
        self._errors: dict[Path, EsperError] = {}

    def wait(self, journal: Path, seconds: float) -> None:
        """Have all compressed segments of a journal read, so that only the newest events are left to be.

        Raises:
            FolderError: the journal cannot be read.
            QueryError: it takes longer than `seconds`; it goes on meanwhile.
        """
        from esper_overwatch.trainer.query.part_cache import count_segments

        kept, total = count_segments(journal)
        if kept == total:
            return
        thread = self._start(journal)
        thread.join(seconds)
        if thread.is_alive():
            kept, total = count_segments(journal)
            raise QueryError(
                f"indexing the journal, {kept} of {total} segments so far; it goes on: try again in a moment"
            )
        with self._lock:
            error = self._errors.pop(journal, None)
        if error is not None:
            raise error

    def _start(self, journal: Path) -> threading.Thread:
        with self._lock:
            running = self._threads.get(journal)
            if running is None or not running.is_alive():
                running = threading.Thread(
                    target=self._index, args=(journal,), name="esper-index", daemon=True
                )
                self._threads[journal] = running
                running.start()
            return running

    def _index(self, journal: Path) -> None:
        from esper_overwatch.trainer.query.part_cache import read_tables

        try:
            read_tables(journal, _let_others_work)
        except EsperError as error:
            with self._lock:
                self._errors[journal] = error


def _let_others_work(events: Iterator[Event]) -> Iterator[Event]:
    """Pass events through; the server's other threads get their turn in between."""
    for number, event in enumerate(events):
        if number % 256 == 0:
            time.sleep(0)
        yield event
