"""Limits of the part of an answer that becomes Python objects, measured before it does."""

from __future__ import annotations

import bisect

import pyarrow as pa

MAX_VALUES = 100_000
"""Values of an answer, those in lists and structs counted; more would exceed an answer's size as JSON."""
MAX_BYTES = 16 << 20
"""Bytes of an answer's columns."""


def count_that_fit(rows: pa.Table) -> int:
    """Count the first rows that are within the limits together."""
    counts = range(1, rows.num_rows + 1)
    return bisect.bisect_left(counts, True, key=lambda count: not _fits(rows.slice(0, count)))


def _fits(rows: pa.Table) -> bool:
    if rows.nbytes > MAX_BYTES:
        return False
    return sum(_count(chunk) for column in rows.columns for chunk in column.chunks) <= MAX_VALUES


def _count(values: pa.Array) -> int:
    """The values of a column, each of those in lists and structs as one more."""
    type_, inner = values.type, list[pa.Array]()
    if pa.types.is_map(type_):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        inner = [part.slice(first, last - first) for part in (values.keys, values.items)]
    elif pa.types.is_struct(type_):
        inner = values.flatten()
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        inner = [values.flatten()]
    return len(values) + sum(_count(one) for one in inner)
