"""Every error a client can meet: code on the wire, name, exit code of the command line.

One table; the reference page, the server, the client and the CLI read it.
"""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ErrorKind:
    """One row of `ERRORS`: code on the wire, name, meaning, exit code, whether to ask again helps."""

    code: int
    kind: str
    meaning: str
    exit_code: int
    retryable: bool = False


# Exit codes: 0 done, 2 usage, 3 no such run or not answering, 4 refused (wrong state, forbidden),
# 5 bad request, 6 too late, 7 the command was accepted and failed, 8 the name is taken, 9 bad configuration,
# 10 the run folder or the sockets cannot be used, 11 training failed, 12 the disk refuses, 130 interrupted.
INTERRUPTED_EXIT = 130
DISK_EXIT = 12
FINAL_EXITS = (2, 3, 8, 9, 10)
"""Codes of a training that would end so again: usage, no such run, a taken name, configuration, a folder."""
PASSING_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What a disk says that is full, read-only or sick: the same may be possible later."""
ERRORS: dict[str, ErrorKind] = {
    e.kind: e
    for e in (
        ErrorKind(-32700, "parse", "the request is not JSON", 5),
        ErrorKind(-32600, "invalid_request", "the request lacks a field or has a wrong one", 5),
        ErrorKind(-32601, "unknown_method", "no such method on this socket", 5),
        ErrorKind(-32602, "invalid_params", "a parameter is unknown or out of range", 5),
        ErrorKind(-32603, "internal", "the daemon failed to answer; its log says why", 7),
        ErrorKind(-32001, "version", "protocol version not spoken", 5),
        ErrorKind(-32002, "forbidden", "the peer may not do this", 4),
        ErrorKind(-32003, "wrong_state", "not in this state of the run", 4),
        ErrorKind(-32004, "busy", "another operation of this kind is running", 4, True),
        ErrorKind(-32005, "overloaded", "too many requests: wait `retry_after_ms`", 4, True),
        ErrorKind(-32006, "leased", "another holds the lease on commands", 4),
        ErrorKind(-32007, "not_found", "nothing of that name", 3),
        ErrorKind(-32008, "deadline", "the deadline had passed when the request arrived", 6),
        ErrorKind(-32009, "id_reused", "this id was used with another body", 5),
        ErrorKind(-32010, "boot_mismatch", "the daemon has restarted since", 4),
        ErrorKind(-32011, "shutting_down", "the daemon is stopping", 4),
        ErrorKind(-32012, "range_gone", "these sequence numbers are no longer held", 5),
        ErrorKind(-32013, "too_large", "the request is too large", 5),
        ErrorKind(-32014, "no_reply", "no answer before the deadline (raised by the client)", 3, True),
        ErrorKind(-32015, "cancelled", "cancelled before it was executed", 7),
    )
}
BY_CODE: dict[int, ErrorKind] = {e.code: e for e in ERRORS.values()}


class EsperError(Exception):
    """An error that is one line for the operator; `exit_code` is what the command line ends with."""

    exit_code = 1


class WireError(EsperError):
    """Bytes that are not an event, batch, heartbeat or reply of this protocol."""


class BadName(EsperError):
    """Not a name for a run, or for a key."""

    exit_code = 2


class RunNotFound(EsperError):
    """No run of that name, or none that answers."""

    exit_code = 3


class NoReply(EsperError):
    """The daemon did not answer in time."""

    exit_code = 3


class NameTaken(EsperError):
    """A live daemon holds the run's lock."""

    exit_code = 8


class FolderError(EsperError):
    """A folder or a socket path cannot be used; raised while a disk refuses, it has the code for that."""

    exit_code = 10

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        handled = sys.exception()
        if isinstance(handled, OSError) and handled.errno in PASSING_ERRNOS:
            self.exit_code = DISK_EXIT


class KeysUnusable(EsperError):
    """A key is missing, unreadable, or its file is open to others."""

    exit_code = 10


class KeyRefused(EsperError):
    """The daemon does not let this key in, or is not the one that the key is for."""

    exit_code = 4


class MissingExtra(EsperError):
    """A package of one of the optional extras is not installed."""

    exit_code = 9


class PublishError(EsperError, ValueError):
    """A value given to a published run cannot be published, or the run has ended."""

    exit_code = 5


class TunnelError(EsperError):
    """ssh is absent, the other machine cannot be reached, or `esper-daemon` is not on it."""

    exit_code = 3


@dataclass
class RequestError(EsperError):
    """The daemon answered with a typed error."""

    kind: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    @property
    def code(self) -> int:
        """Code on the wire."""
        return ERRORS.get(self.kind, ERRORS["internal"]).code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """Exit code of the command line."""
        return ERRORS.get(self.kind, ERRORS["internal"]).exit_code


def first_line(error: BaseException) -> str:
    """The first line of an error's message; empty where it has none."""
    return next(iter(str(error).strip().splitlines()), "")
