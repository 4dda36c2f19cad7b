"""Events as Arrow batches, a table for each type, and what a part of a journal has beside its events."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pyarrow as pa
from msgspec import Struct, field, json

from esper_overwatch.protocol.codec.json_lines import Event, Unknown
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import JournalPart
from esper_overwatch.protocol.messages.events import EVENTS, EpochFinished, RunStarted

from .arrow_types import column
from .timeline import FIRST_TYPES, Position, position

MAX_BATCH_ROWS = 2000
"""Rows of a batch; as many are held in memory per type."""
MAX_BATCH_LINES = 8 << 20
"""Bytes of lines after which a batch of all types ends."""
RAW = "raw"
"""The table of all events as they were written."""
_PLACE_BITS = 36
_ENVELOPE = [
    pa.field("place", pa.int64()),
    pa.field("seq", pa.int64()),
    pa.field("ts", pa.timestamp("us")),
    pa.field("ctx_round", pa.int64()),
    pa.field("ctx_epoch", pa.int64()),
    pa.field("ctx_level", pa.string()),
    pa.field("ctx_env", pa.int64()),
    pa.field("ctx_rank", pa.int64()),
]
"""`place` orders the events of a journal: number of the segment, then of the event in it."""


def _fields(cls: type) -> list[pa.Field]:
    hints = typing.get_type_hints(cls)
    columns = (column(one.name, hints[one.name]) for one in fields(cls))
    return [pa.field(one.name, one.type, metadata=one.metadata) for one in columns]


SCHEMAS: dict[str, pa.Schema] = {
    RAW: pa.schema([*_ENVELOPE, *(pa.field(name, pa.string()) for name in ("stream", "type", "line"))]),
    **{type_: pa.schema([*_ENVELOPE, *_fields(spec.cls)]) for type_, spec in EVENTS.items()},
}
"""Columns of the table of each event type; a field without a fixed shape is JSON text."""
_JSON = {type_: {one.name for one in schema if one.metadata} for type_, schema in SCHEMAS.items()}


class Boot(Struct, frozen=True):
    """The fields of a `run.started` that later events are read with."""

    place: int
    boot: str
    ops: list[str]
    slots: list[str]
    stages: list[str]
    blueprints: list[str]


class FirstEvent(Struct, frozen=True):
    """The first event of a boot, in a part, that says where in the run it is."""

    place: int
    position: Position


class PartSummary(Struct):
    """Knowledge of a journal's part without its tables."""

    rows: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    boots: list[Boot] = field(default_factory=list)
    first: list[FirstEvent] = field(default_factory=list)
    """At most one before the first boot, and one after each."""
    components: list[str] = field(default_factory=list)
    """Reward components, in the order of their appearance."""
    numbers: list[tuple[str, int, int]] = field(default_factory=list)
    """Stream, first and last of events that follow each other without a gap."""
    places: list[str] = field(default_factory=list)
    """First places of damage, in words."""
    num_places: int = 0


class EventColumns:
    """Reads a part into batches.

    Args:
        write: takes each batch with the name of its table.
    """

    def __init__(self, write: Callable[[str, pa.RecordBatch], None]) -> None:
        self._write = write
        self._waiting: dict[str, list[tuple[int, Event]]] = {}
        self._bytes = 0
        self.summary = PartSummary()

    def read(self, part: JournalPart, watch: Callable[[Iterator[Event]], Iterator[Event]]) -> PartSummary:
        """Write all of a part.

        Args:
            part: of a journal.
            watch: passes its events on; may raise.

        Raises:
            FolderError: it cannot be read.
        """
        damage = DamageReport()
        is_open = True
        last: dict[str, int] = {}
        for number, event in enumerate(watch(part.events(damage.note)), start=1):
            place = (part.number << _PLACE_BITS) + number
            self._count(event, last)
            if isinstance(event.data, RunStarted):
                self._boot(place, event.data)
                is_open = True
            elif is_open and event.type in FIRST_TYPES:
                self.summary.first.append(FirstEvent(place, position(event)))
                is_open = False
            if isinstance(event.data, EpochFinished):
                known = self.summary.components
                known += [name for name in event.data.reward_components if name not in known]
            self._add(place, event)
        for table in list(self._waiting):
            self._flush(table)
        self.summary.places, self.summary.num_places = damage.places, damage.num_places
        return self.summary

    def _count(self, event: Event, last: dict[str, int]) -> None:
        """Extend the newest range of the event's stream, or begin one."""
        numbers = self.summary.numbers
        at = last.get(event.stream)
        if at is not None and numbers[at][2] + 1 == event.seq:
            numbers[at] = (event.stream, numbers[at][1], event.seq)
            return
        last[event.stream] = len(numbers)
        numbers.append((event.stream, event.seq, event.seq))

    def _boot(self, place: int, data: RunStarted) -> None:
        boot = Boot(
            place=place,
            boot=data.boot,
            ops=data.ops,
            slots=data.slots,
            stages=data.stages,
            blueprints=data.blueprints,
        )
        self.summary.boots.append(boot)

    def _add(self, place: int, event: Event) -> None:
        tables = (RAW,) if isinstance(event.data, Unknown) else (RAW, event.type)
        for table in tables:
            waiting = self._waiting.setdefault(table, [])
            waiting.append((place, event))
            if len(waiting) >= MAX_BATCH_ROWS:
                self._flush(table)
        self._bytes += len(event.line)
        if self._bytes >= MAX_BATCH_LINES:
            self._bytes = 0
            for table in list(self._waiting):
                self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._waiting.pop(table, [])
        if not rows:
            return
        schema = SCHEMAS[table]
        context = [event.ctx for _, event in rows]
        columns: list[list[Any]] = [
            [place for place, _ in rows],
            [event.seq for _, event in rows],
            [event.ts for _, event in rows],
            [ctx.round for ctx in context],
            [ctx.epoch for ctx in context],
            [ctx.level for ctx in context],
            [ctx.env for ctx in context],
            [ctx.rank for ctx in context],
        ]
        if table == RAW:
            columns += [[event.stream for _, event in rows], [event.type for _, event in rows]]
            columns.append([event.line.decode() for _, event in rows])
        else:
            texts = _JSON[table]
            for name in schema.names[len(_ENVELOPE) :]:
                values = [getattr(event.data, name) for _, event in rows]
                columns.append([json.encode(value).decode() for value in values] if name in texts else values)
        arrays = [pa.array(values, type=one.type) for values, one in zip(columns, schema, strict=True)]
        self._write(table, pa.RecordBatch.from_arrays(arrays, schema=schema))
        self.summary.rows[table] = self.summary.rows.get(table, 0) + len(rows)
