"""What `esper-daemon data` says, as rows of plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .registrations import Holds
from .registry import entries, load, register

Row = dict[str, Any]


def listed() -> list[Row]:
    """Every dataset that has a name."""
    return [msgspec.to_builtins(entry) for entry in entries()]


def checked(name: str) -> Row:
    """Read a dataset; what it holds."""
    return _row(name, Holds.of(load(name)))


def registered(name: str, folder: Path) -> Row:
    """Register a folder's files; what they hold."""
    return _row(name, register(name, folder).holds)


def as_text(rows: list[Row]) -> str:
    """One line a dataset."""
    lines = []
    for row in rows:
        place = row["folder"] or ""
        if not row["ready"]:
            missing = f"{place} is gone" if place else "not here"
            place = f"{missing}; esper-daemon data {row['name']} --from FOLDER"
        holds = str(msgspec.convert(row["holds"], Holds)) if row["holds"] else ""
        lines.append(f"{row['name']:<16} {row['format']:<9} {place}  {holds}".rstrip())
    return "\n".join(lines)


def _row(name: str, holds: Holds) -> Row:
    entry = next(entry for entry in entries() if entry.name == name)
    return {"name": name, "format": entry.format, "folder": entry.folder, **msgspec.to_builtins(holds)}
