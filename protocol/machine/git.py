"""The code that a program runs, as git knows it: the commit and what has been changed since.

git is called without a shell, in the program's working directory, and within one limit of time and bytes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

GIT_SECONDS = 2.0
"""For all calls together; a repository that needs longer is described as far as that went."""
MAX_DIFF_BYTES = 64 * 1024
_MAX_COMMIT_BYTES = 256
_END_SECONDS = 1.0
"""For a killed process to go away; one that hangs in a file system stays."""
_CONFIGURATION = ("-c", "core.fsmonitor=false", "-c", "diff.autoRefreshIndex=false")
"""Start no program of the repository's, and leave its index as it is: `GIT_OPTIONAL_LOCKS` is not enough."""
_DIFF = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--submodule=short")
"""Keep the user's configuration from changing the form, and from running other programs."""
_FILE = "diff --git "
"""Beginning of the first line about a file."""
_CONTROLS = {code: "\ufffd" for code in range(32) if chr(code) != "\t"}
"""In JSON each of them would take six bytes."""


@dataclass
class CodeState:
    """A working tree; what could not be found out is empty or None, and `missing` says why."""

    commit: str = ""
    dirty: bool | None = None
    """True if files that git knows differ from the commit."""
    diff: list[str] = field(default_factory=list)
    """Lines of `git diff HEAD`."""
    diff_cut: bool = False
    missing: str = ""


def read_code_state(
    folder: Path, *, seconds: float = GIT_SECONDS, max_bytes: int = MAX_DIFF_BYTES
) -> CodeState:
    """Ask git about the working tree that a folder is in; raises nothing that git or the system can cause.

    Args:
        folder: the program's working directory.
        seconds: for all of it.
        max_bytes: of the difference; what is beyond is cut off at a line.
    """
    end = time.monotonic() + seconds
    try:
        found = _call(folder, ["rev-parse", "--verify", "HEAD"], end, _MAX_COMMIT_BYTES)
        if not found.is_whole:
            return CodeState(missing=f"git did not answer within {seconds:g} s")
        if found.exit_code:
            return CodeState(missing="the working directory is in no git repository that has a commit")
        code = CodeState(commit=found.content.decode(errors="replace").strip())
        _add_changes(code, folder, end, max_bytes)
    except FileNotFoundError:
        return CodeState(missing="git is not installed, or the working directory is gone")
    except OSError as error:
        return CodeState(missing=f"git cannot be run: {error.strerror or error}")
    return code


def _add_changes(code: CodeState, folder: Path, end: float, max_bytes: int) -> None:
    found = _call(folder, ["diff", "HEAD", *_DIFF], end, max_bytes)
    content = found.content
    if not found.is_whole:
        content = content[: content.rfind(b"\n") + 1]
    elif found.exit_code:
        code.missing = f"git diff failed with exit code {found.exit_code}"
        return
    if not found.is_whole and not content:
        code.missing = "git diff took too long"
        return
    lines = [line.translate(_CONTROLS) for line in content.decode(errors="replace").split("\n")[:-1]]
    code.diff = _without_bare_files(lines)
    code.diff_cut = not found.is_whole
    code.dirty = bool(code.diff) if code.diff or found.is_whole else None


def _without_bare_files(lines: list[str]) -> list[str]:
    """Leave out files of which only the time differs: they have no more than their first line."""
    following = [*lines[1:], _FILE]
    return [
        line
        for line, after in zip(lines, following, strict=False)
        if not (line.startswith(_FILE) and after.startswith(_FILE))
    ]


@dataclass(frozen=True)
class _Answer:
    content: bytes
    is_whole: bool
    """False where the time or the bytes were not enough; then it has no exit code."""
    exit_code: int = 0


def _call(folder: Path, words: list[str], end: float, max_bytes: int) -> _Answer:
    """Run git until it ends, `end` passes on the monotonic clock, or it has written more than `max_bytes`.

    Raises:
        OSError: it cannot be run.
    """
    process = subprocess.Popen(
        ["git", *_CONFIGURATION, *words],
        cwd=folder,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C is the program's alone, and filters end with it
    )
    assert process.stdout is not None
    try:
        with process.stdout as pipe:
            content, is_whole = _read(pipe, end, max_bytes)
        if is_whole:
            return _Answer(content, True, process.wait(max(0.1, end - time.monotonic())))
    except subprocess.TimeoutExpired:
        is_whole = False
    finally:
        _end(process)
    return _Answer(content[:max_bytes], is_whole)


def _read(pipe: IO[bytes], end: float, max_bytes: int) -> tuple[bytes, bool]:
    """What comes out of a pipe, and whether that is all."""
    content = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(content) <= max_bytes:
            if not selector.select(max(0.0, end - time.monotonic())):
                return content, False
            piece = os.read(pipe.fileno(), max_bytes + 1 - len(content))
            if not piece:
                return content, True
            content += piece
    return content, False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
