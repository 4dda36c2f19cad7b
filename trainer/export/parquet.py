"""Parquet: `scalars.parquet`, a row for each number, and a file for each event type.

`scalars.parquet` has `tag`, `step`, `value`, `ts`, `round` and `epoch`; see `scalars` for tags and steps. The
others have `seq`, `ts`, `boot`, `tv`, the clock as `ctx_*`, a column for each field.

`boot` is that of the newest `run.started` before the event, null before the first.

Types come from the event classes. What has no fixed shape (`Any`, dicts of it, types of a later version) is
a column of JSON text. A list of N envs is a list column, N x S slots a list of lists.
"""

from __future__ import annotations

import re
import tempfile
import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from esper_overwatch.protocol.codec.json_lines import Event, Unknown
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.messages.events import EVENTS, RunStarted
from esper_overwatch.protocol.runs import RunInfo
from esper_overwatch.trainer.query.arrow_types import column

from .scalars import read_episode_epochs, scalars

MAX_GROUP_ROWS = 2000
"""Rows in one row group; as many are held in memory per type."""
SCALARS = "scalars"
_SCALARS_SCHEMA = pa.schema(
    [
        pa.field("tag", pa.string(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("round", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
    ]
)
_ENVELOPE = [
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("boot", pa.string()),
    pa.field("tv", pa.int32(), nullable=False),
    pa.field("ctx_round", pa.int64(), nullable=False),
    pa.field("ctx_epoch", pa.int64(), nullable=False),
    pa.field("ctx_level", pa.string(), nullable=False),
    pa.field("ctx_env", pa.int64()),
    pa.field("ctx_rank", pa.int64(), nullable=False),
]


def write(events: Iterator[Event], folder: Path, *, run: RunInfo) -> dict[str, Any]:
    """Write `<type>.parquet` for each type among the events; they appear when all are complete.

    They replace those of an earlier export of the run, of which none stays. Another export into the folder
    at the same time does no harm.

    Args:
        folder: exists.
        run: its id is kept in each file's metadata.

    Raises:
        FolderError: the folder holds files of another run, which have the same names.
        OSError: the folder cannot be written.
    """
    _find_old(folder, run)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as part:
        rows = _write_tables(events, Path(part), run)
        left_out = {} if SCALARS in rows else {"left_out": f"{SCALARS}: the run has no readable config.json"}
        made = sorted(Path(part).iterdir())
        old = _find_old(folder, run)  # once more: another export may have ended meanwhile
        for path in made:
            path.replace(folder / path.name)
        for path in old - {folder / path.name for path in made}:
            path.unlink(missing_ok=True)
    return {"format": "parquet", "to": str(folder), "rows": rows, **left_out}


def _write_tables(events: Iterator[Event], folder: Path, run: RunInfo) -> dict[str, int]:
    """Write the files into an empty folder; gives the number of rows of each type."""
    tables: dict[str, _Table] = {}
    boot: str | None = None
    numbers = _open_scalars(folder, run)
    try:
        for event in events:
            if isinstance(event.data, RunStarted):
                boot = event.data.boot
            table = tables.get(event.type)
            if table is None:
                table = tables[event.type] = _Table(event.type, folder, run.id)
            table.add(event, boot)
            if numbers is not None:
                numbers.add(event)
        everything = tables if numbers is None else {**tables, SCALARS: numbers}
        return {type_: table.finish() for type_, table in everything.items()}
    finally:
        for file in (*tables.values(), *([numbers] if numbers is not None else [])):
            file.close()


def _open_scalars(folder: Path, run: RunInfo) -> _Scalars | None:
    """None where the length of an episode, which steps are counted by, is not known."""
    with suppress(FolderError):
        return _Scalars(folder, run.id, read_episode_epochs(run))
    return None


def _find_old(folder: Path, run: RunInfo) -> set[Path]:
    """The files of earlier exports of the run."""
    found = set()
    for path in sorted(folder.glob("*.parquet")):
        try:
            metadata = pq.read_schema(path).metadata or {}
        except (OSError, pa.ArrowException):  # whatever it is, no export has written it
            continue
        if not metadata.keys() >= {b"run", b"type"}:
            continue
        owner = metadata[b"run"].decode(errors="replace")
        if owner != run.id:
            raise FolderError(
                f"{folder} holds the export of the run {owner} ({path.name}); "
                f"export {run.name} to another folder"
            )
        found.add(path)
    return found


class _File:
    """A Parquet file while it is written.

    Args:
        type_: its name, but for the suffix.
        schema: of its rows.
    """

    def __init__(self, type_: str, folder: Path, run: str, schema: pa.Schema) -> None:
        self._schema = schema.with_metadata({"run": run, "type": type_})
        path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', type_)}.parquet"
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._count = 0

    def take(self, row: dict[str, Any]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= MAX_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._count += len(self._rows)
        self._rows = []

    def finish(self) -> int:
        """Complete the file; returns its rows."""
        if self._rows:
            self._flush()
        self.close()
        return self._count

    def close(self) -> None:
        """Close the file, complete or not."""
        self._writer.close()


class _Scalars(_File):
    """The numbers of all events, a row for each."""

    def __init__(self, folder: Path, run: str, episode_epochs: int) -> None:
        super().__init__(SCALARS, folder, run, _SCALARS_SCHEMA)
        self._episode_epochs = episode_epochs

    def add(self, event: Event) -> None:
        """Add the numbers of an event, if it has any."""
        ctx = event.ctx
        for tag, value, step in scalars(event, self._episode_epochs):
            clock = {"ts": event.ts, "round": ctx.round, "epoch": ctx.epoch}
            self.take({"tag": tag, "step": step, "value": value, **clock})


class _Table(_File):
    """The file of one event type."""

    def __init__(self, type_: str, folder: Path, run: str) -> None:
        spec = EVENTS.get(type_)
        hints = {} if spec is None else typing.get_type_hints(spec.cls)
        self._fields = [] if spec is None else [field.name for field in fields(spec.cls)]
        columns = [column(name, hints[name]) for name in self._fields]
        self._json = {c.name for c in columns if c.metadata} or ({"data"} if spec is None else set())
        unknown = [pa.field("data", pa.string(), metadata={"content": "json"})] if spec is None else []
        envelope = [one for one in _ENVELOPE if one.name not in self._fields]  # `run.started` has a boot
        super().__init__(type_, folder, run, pa.schema([*envelope, *columns, *unknown]))

    def add(self, event: Event, boot: str | None) -> None:
        ctx, data = event.ctx, event.data
        row: dict[str, Any] = {
            "seq": event.seq,
            "ts": event.ts,
            "boot": boot,
            "tv": event.tv,
            "ctx_round": ctx.round,
            "ctx_epoch": ctx.epoch,
            "ctx_level": ctx.level,
            "ctx_env": ctx.env,
            "ctx_rank": ctx.rank,
        }
        if isinstance(data, Unknown):
            row["data"] = data.raw.decode()
        for name in self._fields:
            value = getattr(data, name)
            row[name] = msgspec.json.encode(value).decode() if name in self._json else value
        self.take(row)
