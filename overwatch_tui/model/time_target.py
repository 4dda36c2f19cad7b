"""Moments as an operator types them: a time of day, a span back, a round."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import NamedTuple

from .time_series import SECOND

EXAMPLES = "14:05  14:05:30  2026-11-22 14:05  -10m  +1h30m  r17  r17e4  start  end"
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_SPAN = re.compile(r"([+-])((?:\d+[dhms])+)", re.ASCII)
_CLOCK = re.compile(r"r(\d+)(?:e(\d+))?", re.ASCII)
_TIME = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)


class TimeTarget(NamedTuple):
    """A moment that somebody wants: one of these."""

    ts: int | None = None
    """Microseconds; 0 = the beginning."""
    clock: tuple[int, int] | None = None
    """(round, epoch)."""
    is_end: bool = False


def parse_target(text: str, now: int, *, nearest: bool) -> TimeTarget:
    """Read what was typed.

    Args:
        text: as in `EXAMPLES`.
        now: spans count from here, and a time of day is the last one before it; microseconds.
        nearest: a time of day may also lie after `now`, where that is nearer.

    Raises:
        ValueError: it is none of the forms; says which there are.
    """
    text = text.strip().lower()
    if text in ("start", "end"):
        return TimeTarget(ts=0) if text == "start" else TimeTarget(is_end=True)
    if found := _SPAN.fullmatch(text):
        seconds = sum(int(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"\d+[dhms]", found[2]))
        return TimeTarget(ts=max(0, now + (seconds if found[1] == "+" else -seconds) * SECOND))
    if found := _CLOCK.fullmatch(text):
        return TimeTarget(clock=(int(found[1]), int(found[2] or 1)))
    if found := _TIME.fullmatch(text.upper()):
        return TimeTarget(ts=_time_of_day(found, now, nearest=nearest))
    raise ValueError(f"{text or 'nothing'!r} is not a moment; for example {EXAMPLES}")


def _time_of_day(found: re.Match[str], now: int, *, nearest: bool) -> int:
    date, hour, minute, second = found[1], int(found[2]), int(found[3]), int(found[4] or 0)
    base = datetime.fromtimestamp(now / SECOND)
    try:
        base = base if date is None else datetime.fromisoformat(date)
        moment = base.replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        raise ValueError(f"{found[0]!r} is not a time of day") from None
    if date is not None:
        return _microseconds(moment)
    days = (-1, 0, 1) if nearest else (-1, 0)
    candidates = [_microseconds(moment + timedelta(days=each)) for each in days]
    if nearest:
        return min(candidates, key=lambda ts: abs(ts - now))
    return max(ts for ts in candidates if ts <= now)


def _microseconds(moment: datetime) -> int:
    return int(time.mktime(moment.timetuple())) * SECOND
