"""Runs on this machine: their folders, who is alive, how to reach it by a few letters of its name.

$ESPER_HOME/runs/<name>/   run.json  lock  connection.json  events.jsonl  segments/  daemon.log
                           checkpoints/  traces/  postmortem/
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from .codec.json_lines import MAX_TIME
from .errors import BadName, FolderError, NameTaken, RunNotFound, WireError, first_line
from .journal.overview import RunOverview, read_overview
from .journal.reader import LastWords, last_words
from .journal.segments import SegmentFolder
from .messages.vocabulary import RunKindName, RunState
from .next_commands import next_commands
from .storage.folders import (
    EVENTS_FILE,
    StrPath,
    esper_home,
    is_valid_name,
    make_private,
    socket_folder,
    write_atomically,
)
from .storage.lock import Lock, LockHeld, LockHolder, holder_of
from .storage.records import read_record

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
RUNS_FOLDER = "runs"
"""In the home folder."""
IDENTITY_FILE = "run.json"
LOCK_FILE = "lock"
CONNECTION_FILE = "connection.json"
_ADVICE = "set ESPER_HOME to a folder of yours"
_TRIES = 100
"""To lock a folder that others rename."""


class Connection(Struct, frozen=True):
    """Addresses of a live daemon: `connection.json`."""

    v: int
    """Version of the protocol."""
    run: str
    """Id of the run."""
    name: str
    boot: str
    pid: int
    starttime: int
    """Start of the process in microseconds, which differs from that of a later one with the same pid."""
    started: int
    """When the daemon opened its sockets, microseconds."""
    endpoints: dict[str, str]
    """`ev`, `qry`, `ctl`: Unix sockets."""
    host: str
    version: str
    state: RunState | None = None
    """The run's, at most a second old; null where it was written by an older version."""


class _Identity(Struct, frozen=True):
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    name: str
    """The first one; the folder's is the one that counts."""
    created: Annotated[int, Meta(ge=0, le=MAX_TIME)]
    kind: RunKindName = "training"


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a run.

    Raises:
        BadName: it may not.
    """
    if not is_valid_name(name):
        raise BadName(
            f"{name!r} is not a name for a run: up to 64 letters, digits, '-', '_' and '.', "
            "a letter or digit first"
        )


class RunFolder:
    """A run's folder, held by this process until `release`; see `claim`."""

    def __init__(self, path: Path, identity: _Identity, lock: Lock, *, existed: bool) -> None:
        self.path = path
        self.id = identity.id
        self.name = path.name
        self.created = identity.created
        self.kind = identity.kind
        self.existed = existed
        """True if the run was there before."""
        self.events = path / EVENTS_FILE
        self.log = path / "daemon.log"
        self.checkpoints = path / "checkpoints"
        self.traces = path / "traces"
        self.postmortem = path / "postmortem"
        self.connection = path / CONNECTION_FILE
        self._lock = lock
        self._place = path.stat()

    @classmethod
    def claim(
        cls,
        name: str | None = None,
        *,
        prefix: str = "run",
        home: StrPath | None = None,
        kind: RunKindName = "training",
    ) -> RunFolder:
        """Take the run `name`, new or not, or a new one `<prefix>-<4 hex digits>`.

        Args:
            name: None = a new one.
            prefix: of a new run's name.
            home: instead of `$ESPER_HOME`.
            kind: of the run; one that exists has to be of the same.

        Raises:
            BadName: not a name for a run.
            NameTaken: a live daemon holds it, or it is of the other kind.
            FolderError: the folder cannot be made or used.
        """
        runs = esper_home(home) / RUNS_FOLDER
        for folder in (runs.parent, runs):
            make_private(folder, advice=_ADVICE, readable=True)
        if name is None:
            name = _new_name(prefix, runs)
        check_name(name)
        path = runs / name
        lock = _lock_folder(path)
        try:
            return cls._open(path, name, lock, kind)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open(cls, path: Path, name: str, lock: Lock, kind: RunKindName) -> RunFolder:
        for part in ("segments", "postmortem", "cache"):
            if (path / part).is_symlink():
                raise FolderError(f"{path / part} is a link, and is not followed; move it away")
        identity = _read(path / IDENTITY_FILE, _Identity)
        existed = identity is not None
        if identity is None:
            identity = _Identity(secrets.token_hex(4), name, time.time_ns() // 1000, kind)
            write_atomically(path / IDENTITY_FILE, msgspec.json.encode(identity))
        elif identity.kind != kind:
            raise NameTaken(f"run {name} is a {identity.kind} run, not a {kind} one; choose another name")
        for part in ("checkpoints", "traces"):
            make_private(path / part, advice=_ADVICE)
        return cls(path, identity, lock, existed=existed)

    def find_displacement(self) -> str | None:
        """Describe where the folder went if its path is another's or gone; None where it is in its place."""
        if self.is_deleted:
            return f"the run's folder {self.path} was deleted: its journal and its checkpoints are lost"
        if self._is_in_place:
            return None
        lock = self._lock.locate()
        if lock is None:
            return f"the run's folder {self.path} cannot be found"
        if lock.parent == self._lock.path.parent:
            return None  # of a file system whose inode numbers change
        return f"the run's folder {self.path} was moved to {lock.parent}: move it back for checkpoints"

    @property
    def is_deleted(self) -> bool:
        """True once the lock is deleted, and the folder, or what names the run in it."""
        return self._lock.is_deleted and not (self._is_in_place and (self.path / IDENTITY_FILE).exists())

    @property
    def _is_in_place(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(self._place, self.path.stat())
        return False

    @property
    def has_events(self) -> bool:
        """True if it was trained before."""
        return was_trained(self.name, self.path.parents[1])

    def socket_folder(self) -> Path:
        """The folder of this run's sockets, made and checked.

        Raises:
            FolderError: it cannot be used.
        """
        return socket_folder(self.id)

    def release(self) -> None:
        """Let another process take the run."""
        self._lock.release()

    def abandon(self) -> None:
        """Release the run, and remove its folder where this process made it and nothing has come of it."""
        is_empty = not self.events.exists() or self.events.stat().st_size == 0
        if not self.existed and is_empty and not SegmentFolder(self.events).numbers():
            shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True)
class RunInfo:
    """A run as seen from outside."""

    name: str
    id: str
    path: Path
    created: int
    holder: LockHolder | None
    """The live process, or None."""
    connection: Connection | None
    """Connection of the live daemon, once its sockets are open."""
    kind: RunKindName = "training"
    _damage: list[str] = field(default_factory=list, compare=False)

    @property
    def damage(self) -> str:
        """The first that could not be read of the run's file and of the journal's tail; empty = all could."""
        _ = self._last_words, self.overview
        return next(iter(self._damage), "")

    def _look(self, read: Callable[..., _T]) -> _T | None:
        """Read the journal; what is wrong with it is of this run alone, and is told in its row."""
        try:
            return read(self.path / EVENTS_FILE, on_damage=self._note)
        except Exception as error:
            logger.debug("%s", self.path, exc_info=True)
            self._note(error)
            return None

    def _note(self, error: Exception) -> None:
        if not self._damage:  # the first is told, and there may be millions
            self._damage.append(first_line(error) or type(error).__name__)

    @property
    def is_live(self) -> bool:
        """True if a process holds the run."""
        return self.holder is not None

    @property
    def started(self) -> int:
        """Beginning of its newest boot, as far as is known; microseconds."""
        return self.connection.started if self.connection else self.created

    @property
    def pid(self) -> int | None:
        """Process id of the live process."""
        return self.holder.pid if self.holder else None

    @functools.cached_property
    def _last_words(self) -> LastWords | None:
        return self._look(last_words)

    @property
    def stopped_by(self) -> str:
        """See `RunStopped.stopped_by`."""
        words = None if self.is_live else self._last_words
        return "" if words is None or words.stopped is None else words.stopped.stopped_by

    @functools.cached_property
    def state(self) -> str:
        """State from the journal's tail, read when first asked for.

        While the trainer lives, what it wrote last, or where the tail does not hold it what its connection
        file says; afterwards COMPLETED, STOPPED, FAILED, or DIED where it did not end in order.
        """
        words = self._last_words
        if not self.is_live:
            if words is None or words.stopped is None:
                return "DIED"
            return words.stopped.final_state
        if self.connection is None or words is None or words.stopped is not None:
            return "STARTING"
        return words.state or self.connection.state or "LIVE"

    @property
    def state_text(self) -> str:
        """The state, and who stopped it."""
        return f"{self.state} by {self.stopped_by}" if self.stopped_by else self.state

    @functools.cached_property
    def overview(self) -> RunOverview | None:
        """Figures from the journal's tail, read when first asked for; None where there is no event."""
        return self._look(read_overview)

    @property
    def done(self) -> int:
        """Number of rounds if all planned ones are done; else 0."""
        return self.overview.done if self.overview else 0

    @property
    def next_commands(self) -> list[str]:
        """See the function of this name."""
        return next_commands(self.name, state=self.state, kind=self.kind, done=self.done)


def _lock_folder(path: Path) -> Lock:
    """Make a run's folder, where it is not there, and lock it; where another is renamed meanwhile, once more.

    Raises:
        NameTaken: another process holds it.
        FolderError: it cannot be made or locked.
    """
    for _ in range(_TRIES):
        try:
            make_private(path, advice=_ADVICE)
            lock = Lock(path / LOCK_FILE)
        except FileNotFoundError:
            continue
        except LockHeld as held:
            raise NameTaken(f"run {path.name} is {held}; use another name or stop it") from None
        except OSError as error:
            raise FolderError(f"cannot lock {path / LOCK_FILE}: {error.strerror}") from None
        if lock.is_in_place:
            return lock
        lock.release()
    raise FolderError(f"the folder {path} is renamed or removed all the time; try again")


def was_trained(name: str, home: StrPath | None = None) -> bool:
    """True if there is a run of exactly this name that has events.

    A journal is opened before the hosts are built, and the configuration is written after that: of a start
    that was killed between, the journal is empty, and there is nothing to go on with.
    """
    events = esper_home(home) / RUNS_FOLDER / name / EVENTS_FILE
    if not is_valid_name(name):
        return False
    with suppress(OSError):
        if events.stat().st_size:
            return True
    return bool(SegmentFolder(events).numbers())


def list_runs(home: StrPath | None = None) -> list[RunInfo]:
    """All runs of this user, newest first."""
    found = []
    try:
        paths = list((esper_home(home) / RUNS_FOLDER).iterdir())
    except OSError:
        return []
    for path in paths:
        run = inspect_run(path)
        if run is not None:
            found.append(run)
    return sorted(found, key=lambda run: run.started, reverse=True)


def find_run(prefix: str | None = None, *, live_only: bool = False, home: StrPath | None = None) -> RunInfo:
    """The run meant by a name, or by the beginning of a name or id that only one has.

    Args:
        prefix: None means the newest live run (where `live_only` is off: else the newest of all).
        live_only: leave out the dead.
        home: instead of `$ESPER_HOME`.

    Raises:
        BadName, RunNotFound: see `choose_run`.
    """
    runs = list_runs(home)
    dead = [run for run in runs if live_only and not run.is_live]
    if live_only:
        runs = [run for run in runs if run.is_live]
    if prefix is None:
        live = [run for run in runs if run.is_live]
        if not runs:
            what = "live run" if live_only else "run"
            raise RunNotFound(f"no {what} found; start one with: esper-daemon start")
        return (live or runs)[0]
    if _begin_with(dead, prefix) and not _begin_with(runs, prefix):
        ended = choose_run(dead, prefix)
        goes_on, diagnosis = next_commands(ended.name, state="DIED", kind=ended.kind, done=ended.done)
        raise RunNotFound(
            f"run {ended.name} is not alive ({ended.state_text}); go on: {goes_on}; "
            f"how it ended: {diagnosis}; "
            f"live: {_names(runs)}"
        )
    return choose_run(runs, prefix, num_ended=len(dead))


def ended_text(num_ended: int) -> str:
    """End of a message about live runs only: how many have ended; "" where none has."""
    return f"; ended runs, shown by esper-daemon list --all: {num_ended}" if num_ended else ""


class Named(Protocol):
    """Has a run's name and id."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> str: ...


_N = TypeVar("_N", bound=Named)


def choose_run(runs: Sequence[_N], prefix: str | None, *, num_ended: int = 0) -> _N:
    """The one of `runs` that has this name or id, or alone begins so; None means the first.

    Args:
        runs: to choose from.
        prefix: what was asked for.
        num_ended: how many have ended and are left out of `runs`.

    Raises:
        BadName: it is empty, as a variable that was never set is.
        RunNotFound: none, or more than one; the message names the candidates.
    """
    if prefix == "":
        raise BadName("the name of the run is empty; leave it out for the newest live run")
    if prefix is None:
        if not runs:
            raise RunNotFound("no live run found; start one with: esper-daemon start")
        return runs[0]
    exact = [run for run in runs if prefix in (run.name, run.id)]
    matches = exact or _begin_with(runs, prefix)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunNotFound(f"{prefix} may be any of {_names(matches)}; type more of it")
    what = "live" if num_ended else "there are"
    raise RunNotFound(f"no run {prefix}; {what}: {_names(runs)}{ended_text(num_ended)}")


def _begin_with(runs: Sequence[_N], prefix: str) -> list[_N]:
    return [run for run in runs if run.name.startswith(prefix) or run.id.startswith(prefix)]


def inspect_run(path: Path) -> RunInfo | None:
    """The run in a folder; None where there is none."""
    damage = ""
    try:
        identity = read_record(path / IDENTITY_FILE, _Identity)
    except OSError:
        return None
    except WireError as error:
        identity, damage = _Identity(path.name, path.name, 0), f"{IDENTITY_FILE}: {first_line(error)}"
    holder = holder_of(path / LOCK_FILE)
    connection = _read(path / CONNECTION_FILE, Connection) if holder else None
    if connection is not None and holder is not None and connection.pid != holder.pid:
        connection = None
    return RunInfo(
        name=path.name,
        id=identity.id,
        path=path,
        created=identity.created,
        holder=holder,
        connection=connection,
        kind=identity.kind,
        _damage=[damage] if damage else [],
    )


def _new_name(prefix: str, runs: Path) -> str:
    while (runs / (name := f"{prefix}-{secrets.token_hex(2)}")).exists():
        pass
    return name


def _read(path: Path, cls: type[_T]) -> _T | None:
    try:
        return read_record(path, cls)
    except (OSError, WireError):
        return None


def _names(runs: Sequence[Named]) -> str:
    names = [run.name for run in runs[:8]]
    return ", ".join(names) + (f" and {len(runs) - 8} more" if len(runs) > 8 else "") if names else "none"
