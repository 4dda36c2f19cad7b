"""Answers of tools: bounded, plain JSON, and text that is fit for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from esper_overwatch.protocol.codec.text import clean_text

MAX_ANSWER_BYTES = 200_000
"""Bytes of an answer's rows, as JSON; more are left out and `truncated` says so."""
MAX_TEXT_CHARACTERS = 4_000
"""Characters of one text in an answer."""


def plain(value: Any) -> Any:
    """The value as JSON has it: texts cleaned and bounded, what JSON lacks as words."""
    if isinstance(value, dict):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float):
        return value
    return _text(value.isoformat() if isinstance(value, datetime) else str(value))


def _text(text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[:MAX_TEXT_CHARACTERS]}… ({len(text)} characters)"
    return clean_text(text)


def moment(us: int) -> str:
    """Microseconds as a time in UTC."""
    return datetime.fromtimestamp(us / 1e6, tz=UTC).isoformat()


def bounded(rows: Iterable[Any], max_rows: int) -> tuple[list[Any], bool]:
    """The first rows, made plain, that fit; and whether some were left out."""
    kept: list[Any] = []
    size = 0
    for row in rows:
        if len(kept) >= max_rows:
            return kept, True
        made = plain(row)
        size += len(json.dumps(made))
        if size > MAX_ANSWER_BYTES:
            return kept, True
        kept.append(made)
    return kept, False


def named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterable[dict[str, Any]]:
    """Rows as dicts."""
    return (dict(zip(columns, row, strict=True)) for row in rows)
