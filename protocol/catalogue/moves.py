"""Runs renamed, put away and brought back: each is one rename of the run's folder, while its lock is held.

    $ESPER_HOME/archive/NAME@TIME/   put away by `archive`, until it is brought back
    $ESPER_HOME/trash/NAME@TIME/     removed; deleted for good once it has been there for some days

Whatever ends the process, the run is in one place, whole. Links are not followed: a run whose folder is one
is refused, and of links inside a run only the links are deleted.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from esper_overwatch.protocol.errors import EsperError, FolderError, NameTaken, RunNotFound
from esper_overwatch.protocol.runs import LOCK_FILE, RUNS_FOLDER, RunInfo, check_name, inspect_run
from esper_overwatch.protocol.storage.folders import StrPath, esper_home, make_private, sync_folder
from esper_overwatch.protocol.storage.lock import Lock, LockHeld

ARCHIVE, TRASH = "archive", "trash"
TRASH_DAYS = 30.0
"""Days for which a removed run can be brought back."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


class RunIsLive(EsperError):
    """A process holds the run, so that its folder stays where it is."""

    exit_code = 4


class PutAway(NamedTuple):
    """A run in the archive or in the trash."""

    name: str
    place: str
    """`ARCHIVE` or `TRASH`."""
    since: int
    """Microseconds."""
    path: Path


def rename_run(run: RunInfo, name: str) -> None:
    """Give an ended run another name.

    Raises:
        BadName: not a name for a run.
        NameTaken: another run has it.
        RunIsLive: a process holds the run.
        FolderError: the folder cannot be renamed.
    """
    check_name(name)
    if name != run.name:
        with _held(run):
            _move(run.path, run.path.with_name(name))


def put_away(run: RunInfo, place: str) -> Path:
    """Move an ended run into the archive or the trash; gives its folder there.

    Raises:
        RunIsLive: a process holds the run.
        FolderError: the folder cannot be moved.
    """
    folder = make_private(run.path.parents[1] / place, advice="set ESPER_HOME to a folder of yours")
    target = folder / f"{run.name}@{time.time_ns() // 1000}"
    with _held(run):
        _move(run.path, target)
    return target


def list_put_away(home: StrPath | None = None) -> list[PutAway]:
    """What is in the archive and in the trash, the newest first."""
    found = []
    for place in (ARCHIVE, TRASH):
        for path in _folders(esper_home(home) / place):
            name, _, since = path.name.rpartition("@")
            if name and since.isdecimal():
                found.append(PutAway(name, place, int(since), path))
    return sorted(found, key=lambda one: one.since, reverse=True)


def bring_back(name: str, home: StrPath | None = None) -> Path:
    """Move the newest of this name from the archive or the trash to the runs; gives its folder.

    Raises:
        RunNotFound: none of this name is there.
        NameTaken: a run has the name.
        FolderError: the folder cannot be moved.
    """
    found = next((one for one in list_put_away(home) if one.name == name), None)
    if found is None:
        raise RunNotFound(f"no run {name} in the archive or the trash; what is there: esper-daemon restore")
    check_name(name)
    target = esper_home(home) / RUNS_FOLDER / name
    make_private(target.parent, advice="set ESPER_HOME to a folder of yours", readable=True)
    _move(found.path, target)
    return target


def empty_trash(days: float, home: StrPath | None = None) -> list[PutAway]:
    """Delete for good what has been in the trash for longer than `days`; gives what was deleted.

    Raises:
        FolderError: a folder cannot be deleted.
    """
    oldest = time.time_ns() // 1000 - int(days * 86_400 * 1_000_000)
    over = [one for one in list_put_away(home) if one.place == TRASH and one.since <= oldest]
    for one in over:
        try:
            if one.path.is_symlink() or not one.path.is_dir():
                one.path.unlink(missing_ok=True)
            else:
                shutil.rmtree(one.path)
        except FileNotFoundError:
            continue  # somebody else deletes it, too
        except OSError as error:
            raise FolderError(f"cannot delete {error.filename or one.path}: {error.strerror}") from None
    return over


def _folders(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


@contextmanager
def _held(run: RunInfo) -> Iterator[None]:
    """Hold an ended run, so that nobody takes it meanwhile.

    Raises:
        RunIsLive: a process holds it.
        RunNotFound: somebody else was faster.
        FolderError: its folder is a link, or the lock cannot be made.
    """
    if run.path.is_symlink():
        raise FolderError(f"{run.path} is a link, which is not followed; remove or rename it by hand")
    try:
        lock = Lock(run.path / LOCK_FILE)
    except LockHeld as held:
        raise RunIsLive(f"run {run.name} is {held}; stop it first") from None
    except FileNotFoundError:
        raise RunNotFound(f"run {run.name} is gone from {run.path}") from None
    except OSError as error:
        raise FolderError(f"cannot lock {run.path / LOCK_FILE}: {error.strerror}") from None
    try:
        there = inspect_run(run.path) if lock.is_in_place else None
        if there is None or there.id != run.id:
            raise RunNotFound(f"run {run.name} is gone from {run.path}")
        yield
    finally:
        lock.release()


def _move(source: Path, target: Path) -> None:
    """Rename a folder, never onto another, and bring both names onto the disk."""
    try:
        os.rename(source, target)
        for folder in {source.parent, target.parent}:
            sync_folder(folder)
    except FileNotFoundError:
        raise RunNotFound(f"the run is gone from {source}") from None
    except OSError as error:
        if error.errno in _TAKEN:
            raise NameTaken(f"the name {target.name} is taken: {target}") from None
        raise FolderError(f"cannot move {source} to {target}: {error.strerror}") from None
