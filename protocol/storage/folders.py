"""Private folders, files that are replaced in one step, what may be read, and names that files may have."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO, TypeAlias

import platformdirs

from esper_overwatch.protocol.codec.text import is_utf8
from esper_overwatch.protocol.errors import FolderError

StrPath: TypeAlias = str | os.PathLike[str]
"""A path as a caller writes it."""
EVENTS_FILE = "events.jsonl"
"""The journal's hot segment, in a run's folder."""
CACHE_FOLDER = "cache"
"""In a run's folder: what can be made again from its other files."""
MAX_NAME_LENGTH = 64
MAX_SOCKET_PATH_BYTES = 107
"""Bytes a Unix socket's path may have on Linux."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_valid_name(name: str, max_length: int = MAX_NAME_LENGTH) -> bool:
    """True if a name may become a file's: of a run, a key, a dataset.

    Letters, digits, '-', '_' and '.', a letter or digit first.
    """
    return len(name) <= max_length and _NAME.fullmatch(name) is not None


def esper_home(home: StrPath | None = None) -> Path:
    """Folder of all runs: `home`, else `$ESPER_HOME`, else the platform's data folder; `~` is expanded.

    Raises:
        FolderError: its name is not UTF-8, so that no message could name a file in it, or what it is relative
            to is gone.
    """
    if home is not None:
        name, text = "home", os.fspath(home)
    else:
        name, text = "ESPER_HOME", os.environ.get("ESPER_HOME") or platformdirs.user_data_dir("esper")
    if not is_utf8(text):
        raise FolderError(f"the folder {text!r} is not UTF-8; set {name} to one that is")
    try:
        return Path(text).expanduser().absolute()
    except FileNotFoundError:
        problem = "in a working directory that is gone"
    except RuntimeError:
        problem = "in the home of an unknown user"
    raise FolderError(f"the folder {text} is {problem}; set {name} to a path that begins with /")


def config_folder() -> Path:
    """Folder of keys and settings; it need not exist."""
    return Path(platformdirs.user_config_dir("esper"))


def make_private(path: Path, *, advice: str, readable: bool = False) -> Path:
    """Make `path` (and its parents) with mode 0700, or check the one that is there.

    What was made is on the disk before this returns: without its name nothing in it would be found again.

    Args:
        path: the folder.
        advice: what the operator can do where it cannot be made.
        readable: others may look into one that is there, but not write.

    Raises:
        FolderError: it cannot be made, is a link, belongs to somebody else or is open to others.
    """
    try:
        _make_folder(path)
    except OSError as error:
        raise FolderError(f"cannot make the folder {path}: {error.strerror}; {advice}") from None
    _check_private(path, mask=0o022 if readable else 0o077)
    return path


def _make_folder(path: Path) -> None:
    if not path.parent.is_dir():
        _make_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    sync_folder(path.parent)


def _check_private(path: Path, *, mask: int) -> None:
    """Refuse a folder that somebody else could put things into (or read from, by the mask).

    Raises:
        FolderError: it is a link, no folder, belongs to another user or is open to others.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise FolderError(f"{path} is not a folder of its own (a link or a file); move it away")
    if status.st_uid != os.getuid():
        raise FolderError(
            f"{path} belongs to uid {status.st_uid}, not to you (uid {os.getuid()}); move it away"
        )
    if status.st_mode & mask:
        mode = stat.S_IMODE(status.st_mode)
        raise FolderError(f"{path} is open to others (mode {mode:04o}); run: chmod 700 {path}")


def socket_folder(run_id: str) -> Path:
    """The folder of a run's sockets, made and checked.

    `$XDG_RUNTIME_DIR/esper/<id>`, else `/run/user/<uid>/esper/<id>`, else `<temp>/esper-<uid>/<id>`. A
    relative `$XDG_RUNTIME_DIR` counts as none, as the XDG Base Directory Specification has it.

    Raises:
        FolderError: it cannot be used, or a socket in it would have too long a path.
    """
    folder = _socket_base() / run_id
    if not is_utf8(str(folder)):
        raise FolderError(f"the folder {str(folder)!r} is not UTF-8; set XDG_RUNTIME_DIR to one that is")
    length = len(os.fsencode(folder / "qry"))
    if length > MAX_SOCKET_PATH_BYTES:
        raise FolderError(
            f"the socket path {folder / 'qry'} has {length} bytes and the system's limit is "
            f"{MAX_SOCKET_PATH_BYTES}; set XDG_RUNTIME_DIR to a shorter folder of yours with mode 0700"
        )
    advice = "set XDG_RUNTIME_DIR to a folder of yours with mode 0700"
    make_private(folder.parent, advice=advice)
    return make_private(folder, advice=advice)


def _socket_base() -> Path:
    candidates = [os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"]
    for text in candidates:
        base = Path(text)
        if base.is_absolute() and base.is_dir():
            status = base.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                mode = stat.S_IMODE(status.st_mode)
                raise FolderError(
                    f"{base} is not yours alone to write (uid {status.st_uid}, mode {mode:04o}); "
                    "set XDG_RUNTIME_DIR to a folder of yours with mode 0700"
                )
            return base / "esper"
    return Path(tempfile.gettempdir()) / f"esper-{os.getuid()}"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` in one step, mode 0600, on the disk before this returns.

    Raises:
        FolderError: the disk or the folder refused.
    """
    try:
        replace_file(path, content)
        sync_folder(path.parent)
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror}") from None


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Replace `path` in one step by a file that is on the disk; `sync_folder` brings its name there, too.

    Its mode is 0600.

    Raises:
        OSError: the disk or the folder refused; what was there is untouched.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb", opener=open_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def open_private(path: str, flags: int) -> int:
    """Opener for `open`: the file that it makes, or that is there, has mode 0600; a link is not followed.

    Raises:
        OSError: the disk or the folder refused, or it is a link.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(fd, 0o600)
    return fd


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read that somebody else may have put there: a pipe would wait, a device never end.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def sync_folder(path: Path) -> None:
    """Bring what was made, renamed or removed in a folder onto the disk.

    Raises:
        OSError: the disk refused.
    """
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
