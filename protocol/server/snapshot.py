"""Snapshot for a late joiner: the newest events of each type and subject, as encoded lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import count, repeat

from esper_overwatch.protocol.codec.json_lines import Batch
from esper_overwatch.protocol.messages.events import EVENTS, EventSpec

from .emitter import Emitted

_Key = tuple[object, ...]
_Kept = tuple[int, Batch, int]
"""When it came, and where its line is."""


class Snapshot:
    """Compaction by the rules of each event type: the last `keep` per key, at most `subjects` keys.

    Where keys have to go, those with an open anomaly stay longest.
    """

    def __init__(self) -> None:
        self._order = count()
        self._kept: dict[str, dict[_Key, deque[_Kept]]] = {}
        self._open: dict[str, set[_Key]] = {}
        self._joined: dict[tuple[str, ...], tuple[int, bytes]] = {}

    def extend(self, spec: EventSpec, events: Sequence[Emitted], batch: Batch, begin: int) -> None:
        """Take in events of one type whose lines are in the batch, from `begin` on; the batch is complete."""
        if not spec.keep:
            return
        self._joined.clear()
        subjects = self._kept.setdefault(spec.type, {})
        if spec.key:
            for index, item in enumerate(events, begin):
                self._add(spec, subjects, item, (next(self._order), batch.part(index, index + 1), 0))
            return
        if not subjects:
            subjects[()] = deque(maxlen=spec.keep)
        end = begin + len(events)
        begin = max(begin, end - spec.keep)
        if 2 * len(batch.lines(begin, end)) < len(batch.body):
            batch, begin, end = batch.part(begin, end), 0, end - begin
        subjects[()].extend(zip(self._order, repeat(batch), range(begin, end), strict=False))

    def _add(self, spec: EventSpec, subjects: dict[_Key, deque[_Kept]], item: Emitted, kept: _Kept) -> None:
        key = tuple([_key_part(item, name) for name in spec.key])
        lines = subjects.pop(key, None)
        if lines is None:
            lines = deque(maxlen=spec.keep)
            if len(subjects) >= spec.subjects:
                del subjects[self._key_to_forget(spec.type, subjects)]
        lines.append(kept)
        subjects[key] = lines
        if getattr(item.event, "active", False):
            self._open.setdefault(spec.type, set()).add(key)
        elif spec.type in self._open:
            self._open[spec.type].discard(key)

    def _key_to_forget(self, type_: str, subjects: dict[_Key, deque[_Kept]]) -> _Key:
        still_open = self._open.get(type_, set())
        key = next((key for key in subjects if key not in still_open), next(iter(subjects)))
        still_open.discard(key)
        return key

    def lines(self, streams: Collection[str]) -> tuple[int, bytes]:
        """Count of the lines of these streams, and the lines in the order in which they came."""
        asked = tuple(sorted(set(streams)))
        if asked not in self._joined:
            kept = [
                one
                for type_, subjects in self._kept.items()
                if EVENTS[type_].stream in asked
                for lines in subjects.values()
                for one in lines
            ]
            kept.sort()
            lines = [batch.lines(index, index + 1) for _, batch, index in kept]
            self._joined[asked] = len(lines), b"\n".join(lines)
        return self._joined[asked]


def _key_part(item: Emitted, name: str) -> object:
    if name == "env":
        return item.ctx.env if item.env is None else item.env
    return item.ctx.rank if name == "rank" else getattr(item.event, name)
