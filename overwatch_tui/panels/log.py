"""What happened, newest at the bottom; it follows the end until a row is selected."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice
from typing import Any

import msgspec

from ..describe import Entry
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from .env import clock

_STYLES = {
    "SEED": "blending", "PPO": "chart", "ROUND": "accent", "CMD": "key", "GOV": "critical",
    "ANOM": "warning", "TELEM": "info", "CKPT": "ok", "RUN": "bold", "PROF": "info", "LOG": "dim",
    "VIEW": "dim",
}  # fmt: skip


def title(frame: Frame) -> str:
    return "LOG"


def note(frame: Frame) -> str:
    words = (
        []
        if frame.view.facet == "all"
        else [f"only {frame.view.facet}" if "no" not in frame.view.facet else "no seeds"]
    )
    if frame.view.selected.get("log") is not None:
        words.append("G follows the end")
    return "  ".join(words)


def wanted(frame: Frame, entry: Entry) -> bool:
    """Whether the chosen facet shows it."""
    match frame.view.facet:
        case "no seeds":
            return entry.tag != "SEED"
        case "warnings":
            return entry.severity in ("warning", "critical")
        case "commands":
            return entry.tag in ("CMD", "RUN", "CKPT", "PROF", "TELEM")
        case _:
            return True


def keys(frame: Frame) -> Sequence[Hashable]:
    """(stream, seq, ts) of the entries, oldest first."""
    return [_key(entry) for entry in frame.state.log if wanted(frame, entry)]


def _key(entry: Entry) -> Hashable:
    return entry.stream, entry.seq, entry.ts


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 2, 8


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """The newest rows, or those around the selected one."""
    selected = frame.view.selected.get("log")
    if selected is None:
        newest = (e for e in reversed(frame.state.log) if wanted(frame, e))
        entries = list(islice(newest, height))[::-1]
    else:
        order = keys(frame)
        start, stop = frame.view.visible("log", order, height)
        entries = [e for e in frame.state.log if wanted(frame, e)][start:stop]
        if selected not in order and order:
            selected = order[0]
    if not entries:
        text = (
            "nothing has happened yet"
            if frame.view.facet == "all"
            else f"nothing of this kind ({frame.view.facet}); f for the next"
        )
        return [Row().put(f" {text}", "dim").line(width)]
    return [line_of(frame, entry, width, selected=_key(entry) == selected) for entry in entries]


def line_of(frame: Frame, entry: Entry, width: int, *, selected: bool) -> Line:
    row = Row().put(frame.glyphs.cursor if selected else " ", "focus")
    row.put(clock(entry.ts), "faint").put(" ")
    if width >= 60:
        row.put(f"r{entry.round} e{entry.epoch:02d}" if entry.round else "", "faint", 10)
        row.put(entry.source, "", 12)
        row.put(entry.tag, entry.severity or _STYLES.get(entry.tag, ""), 6)
    else:
        row.put(entry.source + " ", entry.severity or _STYLES.get(entry.tag, ""))
    row.put(entry.text, entry.severity or "")
    line = row.line(width)
    return restyle(line, "select") if selected else line


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """All fields of the selected event, or of the newest."""
    entries = [e for e in frame.state.log if wanted(frame, e)]
    if not entries:
        return body(frame, width, height)
    selected = frame.view.selected.get("log")
    entry = next((e for e in entries if _key(e) == selected), entries[-1])
    lines = [line_of(frame, entry, width, selected=False), EMPTY]
    lines.append(
        Row()
        .put(f"   stream {entry.stream}  seq {entry.seq}  round {entry.round}  epoch {entry.epoch}", "dim")
        .line(width)
    )
    fields: dict[str, Any] = msgspec.to_builtins(entry.data) if entry.data is not None else {}
    name_width = max((len(name) for name in fields), default=0) + 2
    for name, value in fields.items():
        lines += _field(name, str(value), name_width, width)
    return lines


def _field(name: str, text: str, name_width: int, width: int) -> list[Line]:
    """A field, wrapped."""
    room = max(10, width - name_width - 4)
    parts = [p[i : i + room] for p in text.splitlines() or [""] for i in range(0, max(len(p), 1), room)]
    return [
        Row().put("   ").put(name if i == 0 else "", "dim", name_width).put(part).line(width)
        for i, part in enumerate(parts)
    ]


PANEL = Panel(name="log", title=title, body=body, needs=needs, note=note, keys=keys, detail=detail)
