"""Stream `log`: text."""

from __future__ import annotations

from dataclasses import dataclass

from .registry import event


@event("log", "log", keep=100)
@dataclass(kw_only=True)
class LogLine:
    level: str
    logger: str
    message: str
    traceback: str | None = None
