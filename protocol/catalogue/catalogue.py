"""`$ESPER_HOME/catalogue.db`: a row for each run, kept so that a list of them reads no journal twice.

It holds nothing that the runs' folders do not: it may be deleted at any time, a damaged one is made anew, and
where it cannot be written, or is locked for too long, the rows are in memory.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from esper_overwatch.protocol.messages.schema import schema_hash
from esper_overwatch.protocol.runs import RUNS_FOLDER, RunInfo, inspect_run
from esper_overwatch.protocol.storage.folders import StrPath, esper_home

from .entry import RACY_NANOSECONDS, RunEntry, fingerprint, read_entry
from .selection import COLUMNS, SelectedRuns, Selection, select

CATALOGUE_FILE, _GUARD_FILE = "catalogue.db", "catalogue.lock"
CATALOGUE_VERSION = 2
"""Raised when the rows have another form."""
WAIT_SECONDS = 30.0
"""For another process that writes."""
_BATCH = 100
_UNUSABLE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
_HIDDEN = ("overview", "own")
"""What an entry has beside the columns that SQL sees."""
_JSON = (*_HIDDEN, *(name for name, kind in COLUMNS.items() if kind == "JSON"))
_STORED = ("fingerprint", "is_racy", *COLUMNS, *_HIDDEN)
_NAMES = ", ".join(f'"{name}"' for name in _STORED)
_CREATE = f"CREATE TABLE kept ({_NAMES}, PRIMARY KEY (name))"
_ENTRY = ", ".join(f'"{name}"' for name in (*COLUMNS, *_HIDDEN))
_T = TypeVar("_T")


class _DamagedRow(Exception):
    """A row is not what was written."""


class _Kept(NamedTuple):
    """What says whether a row still holds."""

    fingerprint: str
    is_racy: bool
    """True if the run's folder may have changed since without another fingerprint."""
    pid: int | None


class Catalogue:
    """The runs of a home folder; brought up to date whenever it is asked.

    Args:
        home: instead of `$ESPER_HOME`.

    Attributes:
        live: runs that lived at the last look, by name.
    """

    def __init__(self, home: StrPath | None = None) -> None:
        self._home = esper_home(home)
        self._memory: sqlite3.Connection | None = None
        self.live: dict[str, RunInfo] = {}

    def entries(self) -> list[RunEntry]:
        """All runs, the one that started last first.

        Raises:
            FolderError: the home folder has no usable name.
        """

        def read(connection: sqlite3.Connection) -> list[RunEntry]:
            return [_entry(row) for row in connection.execute(f"SELECT {_ENTRY} FROM kept")]

        return sorted(self._ask(read), key=self._started, reverse=True)

    def _started(self, entry: RunEntry) -> int:
        run = self.live.get(entry.name)
        return entry.created if run is None else run.started

    def folder(self, entry: RunEntry) -> Path:
        """The run's folder."""
        return self._home / RUNS_FOLDER / entry.name

    def select(self, selection: Selection, *, seconds: float | None = None) -> SelectedRuns:
        """The runs that a selection is of.

        Args:
            selection: what to show of which runs.
            seconds: time after which it is given up; None = it may take as long as it does.

        Raises:
            BadSelection: it is no SQL, names what there is not, or takes too long.
        """

        def ask(connection: sqlite3.Connection) -> SelectedRuns:
            if seconds is not None:
                end = time.monotonic() + seconds
                connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
            connection.execute("PRAGMA query_only = ON")
            try:
                return select(connection, selection)
            finally:
                connection.execute("PRAGMA query_only = OFF")
                connection.set_progress_handler(None, 0)

        return self._ask(ask)

    def rebuild(self) -> int:
        """Forget all rows and read every run again; gives their number."""
        with suppress(OSError):  # where it cannot be removed, it is not used either
            self._replace(None)
        return len(self.entries())

    def _ask(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Bring the rows up to date and do something with them; a damaged file is replaced once."""
        is_new = False
        while self._memory is None:
            place: int | None = None
            try:
                with self._guarded(fcntl.LOCK_SH), closing(self._open()) as connection:
                    place = self._place()
                    _create(connection)
                    self._update(connection)
                    return work(connection)
            except (sqlite3.DatabaseError, _DamagedRow, OSError) as error:
                if _code(error) == sqlite3.SQLITE_CORRUPT and not is_new:
                    is_new = True
                    with suppress(OSError):
                        self._replace(place)
                        continue
                if _code(error) not in _UNUSABLE:
                    raise
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
            _create(self._memory)
        self._update(self._memory)
        return work(self._memory)

    @contextmanager
    def _guarded(self, how: int) -> Iterator[None]:
        """Keep the file from being replaced while in use: SQLite would play its journal into the new one.

        Raises:
            OSError: the home folder cannot be written.
        """
        fd = os.open(self._home / _GUARD_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def _open(self) -> sqlite3.Connection:
        path = self._home / CATALOGUE_FILE
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)

    def _place(self) -> int:
        return (self._home / CATALOGUE_FILE).stat().st_ino

    def _replace(self, damaged: int | None) -> None:
        """Remove the file; `damaged` is its inode, where another process may have replaced it meanwhile."""
        with self._guarded(fcntl.LOCK_EX), suppress(FileNotFoundError):
            if damaged in (None, self._place()):
                for suffix in ("-journal", ""):
                    (self._home / f"{CATALOGUE_FILE}{suffix}").unlink(missing_ok=True)

    def _update(self, connection: sqlite3.Connection) -> None:
        """Read the runs that have changed since, and forget those that are gone."""
        try:
            folders = {path.name: path for path in (self._home / RUNS_FOLDER).iterdir()}
        except OSError:
            folders = {}
        rows = connection.execute("SELECT name, fingerprint, is_racy, pid FROM kept").fetchall()
        kept = {name: _Kept(*others) for name, *others in rows}
        self.live = {}
        there, waiting = set[str](), list[tuple[Any, ...]]()
        for name, path in folders.items():
            found = fingerprint(path)
            if found is None or (name in kept and self._holds(path, kept[name], found[0])):
                there |= {name} if found else set()
                continue
            row = self._read(connection, path)
            if row is not None:
                there.add(name)
                waiting.append(row)
            if len(waiting) >= _BATCH:
                _write(connection, waiting, ())
                waiting = []
        gone = [name for name in kept if name not in there]
        if waiting or gone:
            _write(connection, waiting, gone)

    def _holds(self, path: Path, kept: _Kept, found: str) -> bool:
        """True if the row of a run is still right."""
        if kept.is_racy or kept.fingerprint != found:
            return False
        if kept.pid is None:
            return True
        run = inspect_run(path)
        if run is None or run.pid != kept.pid:
            return False
        self.live[run.name] = run
        return True

    def _read(self, connection: sqlite3.Connection, path: Path) -> tuple[Any, ...] | None:
        """A row for a run's folder as it is; None where there is no run."""
        now, found, run = time.time_ns(), fingerprint(path), inspect_run(path)
        if found is None or run is None:
            return None
        row = connection.execute(f"SELECT {_ENTRY} FROM kept WHERE name = ?", (path.name,)).fetchone()
        entry = read_entry(run, None if row is None or row[1] != run.id else _entry(row))
        if run.is_live:
            self.live[run.name] = run
        return found[0], found[1] > now - RACY_NANOSECONDS, *_cells(entry)


def _create(connection: sqlite3.Connection) -> None:
    """Make the table, where there is none or one of another version."""
    version = CATALOGUE_VERSION << 24 | int(schema_hash()[:6], 16)
    if connection.execute("PRAGMA user_version").fetchone()[0] == version:
        return
    with _transaction(connection):
        if connection.execute("PRAGMA user_version").fetchone()[0] != version:
            connection.execute("DROP TABLE IF EXISTS kept")
            connection.execute(_CREATE)
            connection.execute(f"PRAGMA user_version = {version}")


def _write(connection: sqlite3.Connection, rows: list[tuple[Any, ...]], gone: Iterable[str]) -> None:
    places = ", ".join("?" * len(_STORED))
    with _transaction(connection):
        connection.executemany(f"INSERT OR REPLACE INTO kept VALUES ({places})", rows)
        connection.executemany("DELETE FROM kept WHERE name = ?", [(name,) for name in gone])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back where the body raises
        yield


def _cells(entry: RunEntry) -> list[Any]:
    """An entry as SQLite's values: lists and objects as JSON."""
    values = msgspec.to_builtins(entry)
    return [_cell(values[name]) for name in (*COLUMNS, *_HIDDEN)]


def _cell(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list | tuple) else value


def _entry(row: tuple[Any, ...]) -> RunEntry:
    """An entry from SQLite's values.

    Raises:
        _DamagedRow: it is not one that was written.
    """
    named = dict(zip((*COLUMNS, *_HIDDEN), row, strict=True))
    try:
        for name in _JSON:
            named[name] = named[name] and msgspec.json.decode(named[name])
        return msgspec.convert(named, RunEntry, strict=False)
    except (msgspec.MsgspecError, TypeError) as error:
        raise _DamagedRow from error


def _code(error: Exception) -> int:
    """SQLite's code for what is wrong."""
    if isinstance(error, sqlite3.DatabaseError):
        code: int = error.sqlite_errorcode & 0xFF
        return sqlite3.SQLITE_CORRUPT if code == sqlite3.SQLITE_NOTADB else code
    return sqlite3.SQLITE_CANTOPEN if isinstance(error, OSError) else sqlite3.SQLITE_CORRUPT
