"""SQL of the schema `events`: a table per event type, without events that a resumed boot has repeated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa

from .event_columns import RAW, Boot, PartSummary
from .timeline import REPEATED_TYPES, Position, order_in_epoch

_END = 2**62
_LISTS = ("ops", "slots", "stages", "blueprints")
NAMES = pa.schema(
    [("boot_number", pa.int32()), ("boot", pa.string()), *((name, pa.list_(pa.string())) for name in _LISTS)]
)
"""Columns of `boots_`: the names that events of a boot have codes of."""


class Boots:
    """The boots of a journal, and which of their events still count; see `timeline`.

    Args:
        summaries: of the journal's parts, the oldest first.
    """

    def __init__(self, summaries: Sequence[PartSummary]) -> None:
        self.all: list[Boot] = [boot for summary in summaries for boot in summary.boots]
        edges = [boot.place for boot in self.all] + [_END]
        self._spans = list(itertools.pairwise(edges))
        starts: list[Position | None] = [None] * len(self.all)
        """Position at which each boot began to train; None where it has not."""
        for first in sorted((one for s in summaries for one in s.first), key=lambda one: one.place):
            number = sum(boot.place < first.place for boot in self.all) - 1
            if number < 0 or starts[number] is not None:
                continue
            starts[number] = first.position
        self._limits: list[Position | None] = []
        """The first position of each boot that a later one has repeated."""
        newest: Position | None = None
        for start in reversed(starts):
            self._limits.append(newest)
            newest = min((one for one in (start, newest) if one is not None), default=None)
        self._limits.reverse()

    def number(self) -> str:
        """SQL: which boot an event is of, from 0; -1 before the first that is held."""
        cases = [f"WHEN place >= {boot.place} THEN {i}" for i, boot in reversed([*enumerate(self.all)])]
        return f"CASE {' '.join(cases)} ELSE -1 END" if cases else "-1"

    def names(self) -> list[dict[str, object]]:
        """Rows of `boots_`: what the codes in events of each boot mean; -1 borrows from the first."""
        rows = [(i, boot.boot, boot) for i, boot in enumerate(self.all)]
        first = self.all[0] if self.all else None
        unknown = {"boot_number": -1, "boot": None, **{x: getattr(first, x) if first else [] for x in _LISTS}}
        return [
            unknown,
            *({"boot_number": i, "boot": b, **{x: getattr(boot, x) for x in _LISTS}} for i, b, boot in rows),
        ]

    def counts(self, type_: str) -> str:
        """SQL: whether an event counts."""
        if type_ not in REPEATED_TYPES:
            return "true"
        order = order_in_epoch(type_)
        undone = []
        for (first, end), limit in zip(self._spans, self._limits, strict=True):
            if limit is not None:
                round_, epoch, limit_order = limit
                same = "true" if order >= limit_order else "false"
                undone.append(
                    f"(place >= {first} AND place < {end} AND (ctx_round > {round_} OR (ctx_round = {round_} "
                    f"AND (ctx_epoch > {epoch} OR (ctx_epoch = {epoch} AND {same})))))"
                )
        return f"NOT ({' OR '.join(undone)})" if undone else "true"

    def view(self, table: str, *, schema: str = "events", rows: str = "") -> str:
        """SQL that makes the view of a table in a schema.

        Args:
            table: a type of event, or `RAW`.
            schema: where the view will be.
            rows: name under which its rows are registered; `_TABLE` by default.
        """
        counts = "true" if table == RAW else self.counts(table)
        return (
            f'CREATE VIEW {schema}."{table}" AS SELECT {self.number()} AS boot_number, * FROM '
            f'"{rows or f"_{table}"}" WHERE {counts}'
        )
