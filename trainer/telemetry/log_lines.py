"""Log records as events."""

from __future__ import annotations

import logging
from contextlib import suppress

from esper_overwatch.protocol.messages.events import LogLine

IN_EVENT = {"is_in_event": True}
"""`extra` of a record that says what an event says: it is for the log file alone."""
_FORMATTER = logging.Formatter()


def log_line(record: logging.LogRecord) -> LogLine:
    """The `log` event of a record, with its traceback where it has one."""
    settle(record)
    traceback = _FORMATTER.formatException(record.exc_info) if record.exc_info else None
    return LogLine(
        level=record.levelname, logger=record.name, message=record.getMessage(), traceback=traceback
    )


def settle(record: logging.LogRecord) -> None:
    """Have a record whose message cannot be made say so, and what it was made of, for all handlers.

    A library may log arguments that do not fit its format, or objects without a text. What came of it would
    end the loop that called the library, or fill the log with stacks of logging itself.
    """
    if not _has_message(record):
        args = record.args if isinstance(record.args, tuple) else (record.args,)
        parts = ", ".join(map(_describe, (record.msg, *args)))
        record.msg, record.args = f"malformed log record: {parts}", None
    if record.exc_info and not _is_exception(record.exc_info):
        record.exc_info = None


def _has_message(record: logging.LogRecord) -> bool:
    with suppress(Exception):  # whatever texts of other people's objects raise
        record.getMessage()
        return True
    return False


def _is_exception(exc_info: object) -> bool:
    return isinstance(exc_info, tuple) and len(exc_info) == 3 and isinstance(exc_info[1], BaseException)


def _describe(value: object) -> str:
    with suppress(Exception):
        return repr(value)
    return f"<{type(value).__name__}>"
