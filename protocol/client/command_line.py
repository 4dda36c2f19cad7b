"""Shared by all command lines: standard files, errors as one line on standard error, and their exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from esper_overwatch.protocol.codec.text import clean_text, is_utf8
from esper_overwatch.protocol.errors import INTERRUPTED_EXIT, EsperError, FolderError
from esper_overwatch.protocol.extras import missing_extra

REFUSED_BY_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
UNREAD_EXIT = 141
"""As of a process that SIGPIPE ended."""


def open_standard_files() -> None:
    """Open on nothing what the caller has closed of standard input, output and error.

    The next files would get their numbers, and whatever a library prints would go into a journal.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115 - as long as the process


class BadArgument(EsperError):
    """A word of the command line that no name, file, message or configuration can hold."""

    exit_code = 2


def check_arguments(words: Sequence[str]) -> None:
    """Refuse words that are not UTF-8: they could neither be sent, nor saved, nor shown.

    Args:
        words: as the system gave them to Python.

    Raises:
        BadArgument: names the first one.
    """
    for word in words:
        if not is_utf8(word):
            raise BadArgument(f"argument {word!r} is not UTF-8: spell it, or rename the file, in UTF-8")


def check_working_directory() -> None:
    """Refuse a working directory that is gone: libraries end the process there in their own words.

    Raises:
        FolderError: it is.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise FolderError(f"the working directory cannot be used: {error.strerror}; cd to another") from None


@contextmanager
def exit_on_error(program: str) -> Iterator[None]:
    """End the program with one line on standard error and the exit code of an `EsperError`.

    After Ctrl-C the code is 130; where standard output has lost its reader (`| head`), 141 without a line;
    where it is a file that the disk refuses to write, 10; where a package of an extra is not installed, 9.
    A character that the output's encoding lacks is written as a question mark.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            yield
        except SystemExit:
            _flush_output()
            raise
        _flush_output()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED_EXIT) from None
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(UNREAD_EXIT) from None
    except OSError as error:
        if error.errno not in REFUSED_BY_DISK:
            raise
        _discard_output()
        print(f"{program}: the output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(FolderError.exit_code) from None
    except ImportError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise _exit(program, missing) from None
    except EsperError as error:
        raise _exit(program, error) from None


def _exit(program: str, error: EsperError) -> SystemExit:
    print(f"{program}: {clean_text(str(error))}", file=sys.stderr)
    return SystemExit(error.exit_code)


def _flush_output() -> None:
    """Write now, while a refusal can still be reported."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _discard_output() -> None:
    """Let what is still buffered go nowhere when the interpreter ends."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
