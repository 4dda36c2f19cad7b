"""What a late joiner needs: the newest events of each type and subject, kept as encoded lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from .events import Context, EventSpec
from .wire import Stamped

_Key = tuple[object, ...]


class _Kept(NamedTuple):
    order: int
    item: Stamped


class Snapshot:
    """Compaction by the rules of each event type: the last `keep` per key, at most `subjects` keys.

    Where keys have to go, those with an open anomaly stay longest.
    """

    def __init__(self) -> None:
        self._order = 0
        self._kept: dict[EventSpec, dict[_Key, deque[_Kept]]] = {}
        self._open: dict[EventSpec, set[_Key]] = {}

    def add(self, spec: EventSpec, ctx: Context, event: object, item: Stamped) -> None:
        """Take in an event that has just been stamped."""
        key = tuple(ctx.env if name == "env" else getattr(event, name) for name in spec.key)
        subjects = self._kept.setdefault(spec, {})
        lines = subjects.pop(key, None)
        if lines is None:
            lines = deque(maxlen=spec.keep)
            if len(subjects) >= spec.subjects:
                del subjects[self._oldest(spec, subjects)]
        self._order += 1
        lines.append(_Kept(self._order, item))
        subjects[key] = lines
        if getattr(event, "active", False):
            self._open.setdefault(spec, set()).add(key)
        elif spec in self._open:
            self._open[spec].discard(key)

    def _oldest(self, spec: EventSpec, subjects: dict[_Key, deque[_Kept]]) -> _Key:
        still_open = self._open.get(spec, set())
        key = next((key for key in subjects if key not in still_open), next(iter(subjects)))
        still_open.discard(key)
        return key

    def lines(self, streams: Collection[str]) -> list[bytes]:
        """Lines of these streams, in the order in which they came."""
        kept = [
            one
            for spec, subjects in self._kept.items()
            if spec.stream in streams
            for lines in subjects.values()
            for one in lines
        ]
        kept.sort(key=lambda one: one.order)
        return [one.item.line for one in kept]
