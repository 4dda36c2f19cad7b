"""`$ESPER_HOME/queue.db`: trainings that wait, run or have ended, as rows of SQLite.

Each change is one transaction that is on the disk when it returns: a process that is killed leaves the queue
as it was before the change or after it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from esper_overwatch.protocol.errors import EsperError, FolderError, NameTaken, RunNotFound
from esper_overwatch.protocol.storage.folders import StrPath, esper_home, make_private

QUEUE_FILE, LOCK_FILE, LOGS_FOLDER = "queue.db", "queue.lock", "queue"
WAIT_SECONDS = 30.0
"""For another process that writes."""
MAX_PAUSE_SECONDS = 60.0
"""Before an entry that was put back begins."""
EntryState = Literal["waiting", "running", "done", "stopped", "failed", "cancelled"]
ENDED: tuple[EntryState, ...] = ("done", "stopped", "failed", "cancelled")
_ADVICE = "set ESPER_HOME to a folder of yours"
_CREATE = """
CREATE TABLE IF NOT EXISTS entry (
    number INTEGER PRIMARY KEY AUTOINCREMENT, place REAL NOT NULL, name TEXT NOT NULL, words TEXT NOT NULL,
    folder TEXT NOT NULL, environment TEXT NOT NULL, state TEXT NOT NULL, is_cancelled INTEGER NOT NULL,
    device TEXT, pid INTEGER, spawned INTEGER, failures INTEGER NOT NULL, due INTEGER NOT NULL,
    added INTEGER NOT NULL, begun INTEGER, ended INTEGER, exit_code INTEGER, reason TEXT NOT NULL
)"""


class NotWaiting(EsperError):
    """The entry does not wait, so it has no place."""

    exit_code = 4


class QueueDamaged(EsperError):
    """The queue's file is no database."""

    exit_code = 10


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A training that waits, runs or has ended; times in microseconds since 1970."""

    number: int
    """From 1, never used again."""
    place: float
    """The lower, the sooner."""
    name: str
    """Of the run, the sweep or the comparison."""
    words: list[str]
    """Command line after `esper-daemon`."""
    folder: str
    """Working directory of who added it."""
    environment: dict[str, str]
    """Options that were in the environment of who added it."""
    state: EntryState
    is_cancelled: bool
    """True once somebody wants its end, though it may still run."""
    device: str | None
    """Where it began; it goes on there."""
    pid: int | None
    """Of its newest process."""
    spawned: int | None
    """Time of the run's newest event before that; 0 = there was none."""
    failures: int
    """Unexpected ends in a row."""
    due: int
    """It does not begin before; further off than any pause, it is of a clock that was set back since."""
    added: int
    begun: int | None
    ended: int | None
    exit_code: int | None
    reason: str
    """Why it failed, or who stopped it."""


class EntryQueue:
    """The queue of a home folder.

    Args:
        home: instead of `$ESPER_HOME`.
    """

    def __init__(self, home: StrPath | None = None) -> None:
        self.home = esper_home(home)

    @property
    def lock_file(self) -> Path:
        """Locked by who works the queue off."""
        return make_private(self.home, advice=_ADVICE) / LOCK_FILE

    def log(self, entry: Entry) -> Path:
        """File of what the entry's process prints."""
        return make_private(self.home / LOGS_FOLDER, advice=_ADVICE) / f"{entry.number}.log"

    def add(
        self, name: str, words: Sequence[str], folder: Path, environment: Mapping[str, str], *, first: bool
    ) -> Entry:
        """Add an entry behind all others, or before them.

        Raises:
            NameTaken: an open entry has the name.
        """
        with self._changes() as rows:
            for known in _entries(rows, "ended IS NULL AND name = ?", name):
                raise NameTaken(f"entry {known.number} of the queue is {name} already; `queue list` shows it")
            places = [other.place for other in _entries(rows, "state = 'waiting'")] or [0.0]
            place = min(places) - 1 if first else max(places) + 1
            fields = {
                "place": place,
                "name": name,
                "words": _encode(list(words)),
                "folder": str(folder),
                "environment": _encode(dict(environment)),
                "state": "waiting",
                "is_cancelled": False,
                "failures": 0,
                "due": 0,
                "added": _now(),
                "reason": "",
            }
            marks = ", ".join(f":{key}" for key in fields)
            number = rows.execute(
                f"INSERT INTO entry ({', '.join(fields)}) VALUES ({marks})", fields
            ).lastrowid
            return _entries(rows, "number = ?", number)[0]

    def entries(self) -> list[Entry]:
        """Running ones, then those that wait, in their order, then ended ones, the newest first."""
        if not (self.home / QUEUE_FILE).exists():
            return []
        with self._changes() as rows:
            found = _entries(rows)
        groups = {"running": 0, "waiting": 1}
        return sorted(found, key=lambda e: (groups.get(e.state, 2), e.place if e.ended is None else -e.ended))

    def find(self, which: str) -> Entry:
        """An entry by its number, or the newest of a name.

        Raises:
            RunNotFound: there is none.
        """
        for entry in sorted(self.entries(), key=lambda entry: -entry.number):
            if which in (str(entry.number), entry.name):
                return entry
        raise RunNotFound(f"no entry of the queue is {which}; `esper-daemon queue list` shows them")

    def move(self, entry: Entry, place: int) -> None:
        """Give an entry a place among those that wait.

        Args:
            place: from 1; beyond the last one means last.

        Raises:
            NotWaiting: it runs or has ended.
        """
        with self._changes() as rows:
            waiting = _entries(rows, "state = 'waiting' ORDER BY place, number")
            others = [other for other in waiting if other.number != entry.number]
            if len(others) == len(waiting):
                raise NotWaiting(f"entry {entry.number} ({entry.name}) does not wait: it has no place")
            others.insert(max(0, place - 1), entry)
            for at, other in enumerate(others):
                rows.execute("UPDATE entry SET place = ? WHERE number = ?", (float(at), other.number))

    def cancel(self, entry: Entry) -> None:
        """End an entry that waits; one that runs is to be ended by who works the queue off."""
        with self._changes() as rows:
            rows.execute(
                "UPDATE entry SET state = 'cancelled', ended = ? WHERE number = ? AND state = 'waiting'",
                (_now(), entry.number),
            )
            rows.execute("UPDATE entry SET is_cancelled = 1 WHERE number = ?", (entry.number,))

    def take(self, device: str | None) -> Entry | None:
        """The next one that may run on a device, as running now; None where none waits for it."""
        with self._changes() as rows:
            found = _entries(
                rows,
                "state = 'waiting' AND (due - ?) NOT BETWEEN 1 AND ? AND (device IS NULL OR device IS ?) "
                "ORDER BY place, number LIMIT 1",
                _now(),
                int(1e6 * MAX_PAUSE_SECONDS),
                device,
            )
            for entry in found:
                rows.execute(
                    "UPDATE entry SET state = 'running', device = ?, begun = ? WHERE number = ?",
                    (device, entry.begun or _now(), entry.number),
                )
                return _entries(rows, "number = ?", entry.number)[0]
        return None

    def record_process(self, entry: Entry, pid: int, newest: int) -> None:
        """Write which process trains an entry, and the time of its run's newest event before."""
        with self._changes() as rows:
            rows.execute(
                "UPDATE entry SET pid = ?, spawned = ? WHERE number = ?", (pid, newest, entry.number)
            )

    def free_devices(self, devices: Sequence[str | None]) -> None:
        """Let entries that wait for a device that is none of these go on with any."""
        with self._changes() as rows:
            for entry in _entries(rows, "state = 'waiting' AND device IS NOT NULL"):
                if entry.device not in devices:
                    rows.execute("UPDATE entry SET device = NULL WHERE number = ?", (entry.number,))

    def end(self, entry: Entry, state: EntryState, exit_code: int | None, reason: str = "") -> None:
        """Write how an entry has ended."""
        with self._changes() as rows:
            rows.execute(
                "UPDATE entry SET state = ?, exit_code = ?, reason = ?, ended = ? WHERE number = ?",
                (state, exit_code, reason, _now(), entry.number),
            )

    def put_back(self, entry: Entry, *, failures: int = 0, seconds: float = 0.0, reason: str = "") -> None:
        """Have an entry that ran wait again, at its place.

        Args:
            failures: unexpected ends in a row.
            seconds: it is not to begin before; at most `MAX_PAUSE_SECONDS`.
            reason: of the last such end.
        """
        due = _now() + int(1e6 * seconds)
        with self._changes() as rows:
            rows.execute(
                "UPDATE entry SET state = 'waiting', failures = ?, due = ?, reason = ? WHERE number = ?",
                (failures, due, reason, entry.number),
            )

    @contextmanager
    def _changes(self) -> Iterator[sqlite3.Connection]:
        """One transaction, undone by an exception.

        Raises:
            FolderError: the home folder cannot be used.
            QueueDamaged: the file is no database.
        """
        path = make_private(self.home, advice=_ADVICE) / QUEUE_FILE
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            with closing(sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)) as rows:
                rows.execute("PRAGMA synchronous = FULL")
                rows.execute("BEGIN IMMEDIATE")
                with rows:
                    rows.execute(_CREATE)
                    yield rows
        except OSError as error:
            raise FolderError(f"cannot use {path}: {error.strerror}") from None
        except sqlite3.OperationalError as error:
            raise FolderError(f"cannot use {path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise QueueDamaged(
                f"{path} is damaged: {error}; move it away and add what waited again"
            ) from None


def _entries(rows: sqlite3.Connection, where: str = "1", *values: Any) -> list[Entry]:
    cursor = rows.execute(f"SELECT * FROM entry WHERE {where}", values)
    names = [column[0] for column in cursor.description]
    return [_entry(dict(zip(names, row, strict=True))) for row in cursor]


def _entry(fields: dict[str, Any]) -> Entry:
    fields |= {key: msgspec.json.decode(fields[key]) for key in ("words", "environment")}
    return msgspec.convert(fields | {"is_cancelled": bool(fields["is_cancelled"])}, Entry)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _now() -> int:
    return time.time_ns() // 1000
