"""Log records as events."""

from __future__ import annotations

import logging

from protocol.messages.events import LogLine

_FORMATTER = logging.Formatter()


def log_line(record: logging.LogRecord) -> LogLine:
    """The `log` event of a record, with its traceback where it has one."""
    traceback = _FORMATTER.formatException(record.exc_info) if record.exc_info else None
    return LogLine(
        level=record.levelname, logger=record.name, message=record.getMessage(), traceback=traceback
    )
