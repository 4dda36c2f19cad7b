"""Answer of the query `history`: lines paged backwards, down-sampled without decoding them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from esper_overwatch.protocol.messages.vocabulary import Stream

MAX_SCAN_BYTES = 1024 * 1024
"""Part of the journal that is read for one answer, about."""
MIN_SCAN_LINES, MAX_SCAN_LINES = 16, 2048
_SAMPLE_LINES = 16
_HEAD = re.compile(
    rb'\{"seq":\d+,"stream":"[a-z]+","ts":(\d+),"type":"([^"]+)","tv":\d+,"ctx":\{([^}]*)\},'
    rb'"data":(?:\{"source":\[?"([a-z]+)|\{"step":\d+,"values":\{"([^"]+))?'
)
_SUBJECT = re.compile(rb'"(?:env|rank)":\d+')

Lines = list[tuple[int, bytes]]


def newest_lines_before(read: Callable[..., Lines], stream: Stream, last: int) -> Lines:
    """The newest lines up to `last`, about `MAX_SCAN_BYTES` of them; none where nothing is held.

    Args:
        read: gives lines of a stream, as `Publisher.range`.
    """
    if last < 1:
        return []
    sample = read(stream, max(1, last - _SAMPLE_LINES + 1), last, limit=MAX_SCAN_BYTES)
    if not sample:
        return []
    mean = sum(len(line) for _, line in sample) / len(sample)
    count = max(MIN_SCAN_LINES, min(MAX_SCAN_LINES, int(MAX_SCAN_BYTES / max(mean, 1.0))))
    found: Lines = []
    first = max(1, last - count + 1)
    while first <= last:
        part = read(stream, first, last, limit=MAX_SCAN_BYTES)
        if not part:
            break
        found += part
        first = part[-1][0] + 1
    return found


class ThinnedLines(NamedTuple):
    """Lines that were kept, and how far the look at them went."""

    lines: list[bytes]
    first: int
    """Lowest number that was looked at."""


def thin_lines(
    lines: Sequence[tuple[int, bytes]], *, types: Collection[str], interval_seconds: float, limit: int
) -> ThinnedLines:
    """Keep the newest line of each interval of absolute time, per type and subject, from the newest on.

    A loop may log some numbers at each step and others seldom: those of other first names are other subjects.

    Args:
        lines: (number, line) in ascending order.
        types: only these; empty = all.
        interval_seconds: 0 keeps all.
        limit: bytes; where they are used up the look ends.
    """
    wanted = {name.encode() for name in types}
    interval = int(interval_seconds * 1e6)
    seen: set[tuple[object, ...]] = set()
    kept: list[bytes] = []
    first = lines[-1][0] + 1 if lines else 0
    for seq, line in reversed(lines):
        head = _HEAD.match(line)
        if wanted and (head is None or head[2] not in wanted):
            first = seq
            continue
        if interval and head is not None:
            key = (head[2], head[4], head[5], int(head[1]) // interval, *_SUBJECT.findall(head[3]))
            if key in seen:
                first = seq
                continue
            seen.add(key)
        if kept and limit < len(line) + 1:
            break
        limit -= len(line) + 1
        kept.append(line)
        first = seq
    return ThinnedLines(kept[::-1], first)
