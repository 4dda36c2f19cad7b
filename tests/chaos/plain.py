"""A journal read as docs/reference describes it, with nothing of the product: json and zstd alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard


@dataclass(frozen=True)
class Line:
    """An event as it stands in the journal."""

    raw: bytes
    seq: int
    stream: str
    ts: int
    type: str
    ctx: dict[str, Any]
    data: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """(round, epoch)"""
        return self.ctx["round"], self.ctx["epoch"]


def parsed(raw: bytes) -> Line:
    """A line; raises ValueError or KeyError where it is none."""
    told = json.loads(raw)
    return Line(raw, told["seq"], told["stream"], told["ts"], told["type"], told["ctx"], told["data"])


def plain_lines(journal: Path) -> list[bytes]:
    """Complete lines of the closed segments in their order, then those of `events.jsonl`.

    Where a plain and a compressed file of one number are both there, the plain one counts.
    """
    folder = journal.with_name("segments")
    closed = {path.name.split(".")[0]: path for path in sorted(folder.glob("events-*.jsonl.zst"))}
    closed |= {path.name.split(".")[0]: path for path in folder.glob("events-*.jsonl")}
    lines: list[bytes] = []
    for _, path in sorted(closed.items()):
        content = path.read_bytes()
        if path.suffix == ".zst":
            reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
            content = reader.read()
        lines += content.split(b"\n")[:-1]
    if journal.exists():
        lines += journal.read_bytes().split(b"\n")[:-1]
    return lines
