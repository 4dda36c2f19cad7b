"""Numbers, sizes, durations and times as text of few columns; `--` is what was not measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf, isfinite

NOT_MEASURED = "--"
SHORT_STAGE_NAMES = {
    "DORMANT": "DORM",
    "GERMINATED": "GERM",
    "TRAINING": "TRAIN",
    "BLENDING": "BLEND",
    "HOLDING": "HOLD",
    "FOSSILIZED": "FOSSIL",
    "PRUNED": "PRUNED",
    "EMBARGOED": "EMBARGO",
    "RESETTING": "RESET",
}
"""At most seven letters."""


def format_number(value: float | None, form: str = ".2f") -> str:
    """A measured number in the given form; not finite ones as `nan` and `inf`."""
    return NOT_MEASURED if value is None else format(value, form)


def rank_of(value: object) -> float:
    """A number to sort by: what was not measured is below all others, what is not finite above."""
    if not isinstance(value, int | float):
        return -inf
    return value if isfinite(value) else inf


def format_share(value: float | None, sign: str = "") -> str:
    """A number around 1 without its leading zero: `.34`, with `sign` "+" `+.61`; tiny ones as `3e-04`."""
    if value is None:
        return NOT_MEASURED
    text = f"{value:{sign}{'.0e' if 0 < abs(value) < 0.005 else '.2f'}}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def format_percent(share: float | None) -> str:
    """A share of 1 in percent, without the sign: `71.4`."""
    return NOT_MEASURED if share is None else f"{100 * share:.1f}"


def format_points(change: float | None) -> str:
    """A difference of two shares in percentage points: `+1.2`."""
    return NOT_MEASURED if change is None else f"{100 * change:+.1f}"


def format_compact(value: float | None, width: int) -> str:
    """A number in fixed point of `width` columns; with an exponent where that is too long or all zeros."""
    if value is None:
        return NOT_MEASURED
    if not isfinite(value):
        return str(value)
    text = f"{value:.2f}"
    if len(text) > width:
        text = format_count(value) if abs(value) < 1e9 else f"{value:.0e}"
    elif value and abs(value) < 0.005:
        text = f"{value:.0e}".replace("e-0", "e-")
    return text


def format_bytes(count: float | None) -> str:
    """Bytes in the unit that fits: `640 B`, `1.5 MiB`."""
    if count is None:
        return NOT_MEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def format_count(count: float | None) -> str:
    """A count in three to six characters: `950`, `5.4K`, `1.2M`."""
    if count is None:
        return NOT_MEASURED
    if abs(count) < 1000:
        return f"{count:.0f}"
    for divisor, unit in ((1e3, "K"), (1e6, "M"), (1e9, "G")):
        if abs(count) < divisor * 1000 or unit == "G":
            break
    return f"{count / divisor:.1f}{unit}"


def format_duration(seconds: float | None) -> str:
    """A duration in at most six characters: `41s`, `2m04s`, `3h12m`, `5d07h`."""
    if seconds is None or not isfinite(seconds):
        return NOT_MEASURED if seconds is None else str(seconds)
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    full = int(seconds)
    if full < 60:
        return f"{full}s"
    if full < 3600:
        return f"{full // 60}m{full % 60:02d}s"
    if full < 86_400:
        return f"{full // 3600}h{full % 3600 // 60:02d}m"
    return f"{full // 86_400}d{full % 86_400 // 3600:02d}h"


def format_clock(ts: int) -> str:
    """Local wall time of a time in microseconds: `HH:MM:SS`."""
    return time.strftime("%H:%M:%S", time.localtime(ts / 1e6))


def sorted_terms(terms: Mapping[str, float | None], least: float = 0.0005) -> list[tuple[str, float]]:
    """Terms of a sum, the largest first; without those that would be shown as 0 or were not measured."""
    known = [(name, value) for name, value in terms.items() if value is not None and not abs(value) < least]
    return sorted(known, key=lambda term: -abs(term[1]))
