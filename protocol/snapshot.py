"""What a late joiner needs: the newest events of each type and subject, kept as encoded lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from .events import EVENTS, Context, EventSpec

_Key = tuple[object, ...]
_Kept = tuple[int, bytes]
"""When it came, and its line."""


class Snapshot:
    """Compaction by the rules of each event type: the last `keep` per key, at most `subjects` keys.

    Where keys have to go, those with an open anomaly stay longest.
    """

    def __init__(self) -> None:
        self._order = 0
        self._kept: dict[str, dict[_Key, deque[_Kept]]] = {}
        self._open: dict[str, set[_Key]] = {}

    def add(self, spec: EventSpec, ctx: Context, event: object, line: bytes) -> None:
        """Take in an event that has just been stamped."""
        subjects = self._kept.setdefault(spec.type, {})
        self._order += 1
        if not spec.key and subjects:
            subjects[()].append((self._order, line))
            return
        key = tuple([getattr(ctx if name in ("env", "rank") else event, name) for name in spec.key])
        lines = subjects.pop(key, None)
        if lines is None:
            lines = deque(maxlen=spec.keep)
            if len(subjects) >= spec.subjects:
                del subjects[self._oldest(spec.type, subjects)]
        lines.append((self._order, line))
        subjects[key] = lines
        if getattr(event, "active", False):
            self._open.setdefault(spec.type, set()).add(key)
        elif spec.type in self._open:
            self._open[spec.type].discard(key)

    def _oldest(self, type_: str, subjects: dict[_Key, deque[_Kept]]) -> _Key:
        still_open = self._open.get(type_, set())
        key = next((key for key in subjects if key not in still_open), next(iter(subjects)))
        still_open.discard(key)
        return key

    def lines(self, streams: Collection[str]) -> list[bytes]:
        """Lines of these streams, in the order in which they came."""
        kept = [
            one
            for type_, subjects in self._kept.items()
            if EVENTS[type_].stream in streams
            for lines in subjects.values()
            for one in lines
        ]
        kept.sort()
        return [line for _, line in kept]
