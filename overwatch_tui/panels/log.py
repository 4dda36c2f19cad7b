"""The log, newest entry at the bottom; it follows the end until a row is selected."""

from __future__ import annotations

from collections.abc import Hashable, Reversible, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.log_entries import LogEntry
from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts, overview_curves
from esper_overwatch.overwatch_tui.render.event_text import event_text
from esper_overwatch.overwatch_tui.render.format import format_clock
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, wrapped
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import severity_mark
from esper_overwatch.overwatch_tui.render.view_state import Scroll

_TOLD = ("GERMINATED", "FOSSILIZED", "PRUNED")
"""Stages that a folded line counts."""
_STYLES = {
    "SEED": "blending",
    "PPO": "chart",
    "ROUND": "accent",
    "CMD": "key",
    "GOV": "critical",
    "INC": "warning",
    "TELEM": "info",
    "CKPT": "ok",
    "RUN": "bold",
    "PROF": "info",
    "LOG": "dim",
    "VIEW": "dim",
}


def note(inputs: PanelInputs) -> str:
    end = "G follows the end" if inputs.view.selected.get("log") is not None else ""
    return "  ".join(filter(None, (inputs.view.filter_note("log"), end)))


FIELDS = ("source", "tag", "sev", "round", "epoch", "text")


def _fields_of(entry: LogEntry) -> dict[str, FieldValue]:
    return {
        "source": entry.source,
        "tag": entry.tag,
        "sev": entry.severity or "",
        "round": entry.round,
        "epoch": entry.epoch,
        "text": event_text(entry.data),
    }


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    """(stream, seq, ts) of the newest entry of each row, the oldest row first."""
    return [_key(row[0]) for row in _rows(inputs)]


def _rows(inputs: PanelInputs) -> list[list[LogEntry]]:
    """Rows that the filter shows, each of the entries it tells of, the newest first; see `_folded`."""
    if "log" in inputs.view.filters:
        passes = inputs.view.passes
        return [[e] for e in inputs.state.log if passes("log", partial(_fields_of, e))]
    return inputs.keep("folded log", lambda: _folded(inputs.state.log))


def _folded(log: Reversible[LogEntry]) -> list[list[LogEntry]]:
    """The moves of the seeds in an epoch make one row, in the place of the last; all else has its own."""
    rows: list[list[LogEntry]] = []
    moved: dict[tuple[int, int], list[LogEntry]] = {}
    for entry in reversed(log):
        group = moved.setdefault((entry.round, entry.epoch), []) if entry.tag == "SEED" else []
        group.append(entry)
        if len(group) == 1:
            rows.append(group)
    rows.reverse()
    return rows


def _told(row: list[LogEntry]) -> LogEntry:
    """What a row shows: its entry, or one that sums several up."""
    return row[0] if len(row) == 1 else replace(row[0], source="seeds", data=_moves(row))


def _moves(group: list[LogEntry]) -> str:
    """`14 moved: 3 germinated, 1 fossilized`."""
    stages = [str(entry.data.to_stage) for entry in group if not isinstance(entry.data, str)]
    told = [f"{stages.count(name)} {name.lower()}" for name in _TOLD if name in stages]
    return f"{len(group)} moved" + (f": {', '.join(told)}" if told else "")


def _key(entry: LogEntry) -> Hashable:
    return entry.stream, entry.seq, entry.ts


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The newest rows, or those around the selected one."""
    selected, rows = inputs.view.selected.get("log"), _rows(inputs)
    if selected is None:
        scroll = Scroll(max(0, len(rows) - height), height)
    else:
        order = keys(inputs)
        scroll = inputs.view.visible_rows("log", order, height, top=0)
        if selected not in order and order:
            selected = order[0]
    entries = [_told(row) for row in rows[scroll.rows]]
    if not entries:
        text = inputs.empty_text("log", "line", "nothing has happened yet")
        return Drawn([Row().put(f" {text}", "dim").line(width)], scroll)
    lines = [entry_line(inputs, entry, width, selected=_key(entry) == selected) for entry in entries]
    names = overview_curves(inputs)
    if inputs.view.name == "run":  # beside the panels that have charts of their own
        names = [] if inputs.state.is_published else [name for name in names if name.startswith("ppo.")]
    return Drawn(fill_with_charts(inputs, lines, width, height, names), scroll)


def entry_line(inputs: PanelInputs, entry: LogEntry, width: int, *, selected: bool) -> Line:
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    row.put(format_clock(entry.ts), "faint").put(" ")
    mark = severity_mark(entry.severity).strip()
    if width >= 60:
        row.put(f"r{entry.round} e{entry.epoch:02d}" if entry.round else "", "faint", 10)
        row.put(entry.source, "", 12)
        row.put(entry.tag + mark, entry.severity or _STYLES.get(entry.tag, ""), 6)
    else:
        row.put(f"{entry.source}{mark} ", entry.severity or _STYLES.get(entry.tag, ""))
    row.put(event_text(entry.data), entry.severity or "")
    return row.line(width, selected=selected)


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """All fields of the selected event, or of the newest."""
    rows = _rows(inputs)
    if not rows:
        return body(inputs, width, height)
    selected = inputs.view.selected.get("log")
    entry = _told(next((row for row in rows if _key(row[0]) == selected), rows[-1]))
    lines = [entry_line(inputs, entry, width, selected=False), EMPTY]
    where = f"   stream {entry.stream}  seq {entry.seq}  round {entry.round}  epoch {entry.epoch}"
    lines.append(Row().put(where, "dim").line(width))
    found = {} if isinstance(entry.data, str) else msgspec.to_builtins(entry.data)
    name_width = max((len(name) for name in found), default=0) + 2
    for name, value in found.items():
        lines += wrapped(str(value), width, label=f"   {name}", column=3 + name_width, is_whole=True)
    room = height - len(lines) - 2
    if room > 0:
        lines += [EMPTY, Row().put(" around it", "bold").line(width)]
        lines += _around(inputs, entry, width, room)
    return Drawn(lines)


def _around(inputs: PanelInputs, entry: LogEntry, width: int, room: int) -> list[Line]:
    """Entries of the whole log before and after one."""
    entries = list(inputs.state.log)
    at = next((i for i, one in enumerate(entries) if _key(one) == _key(entry)), len(entries) - 1)
    first = max(0, min(at - room // 2, len(entries) - room))
    shown = entries[first : first + room]
    lines = [entry_line(inputs, one, width, selected=_key(one) == _key(entry)) for one in shown]
    return fill_with_charts(inputs, lines, width, room)


RENDERER = Renderer(
    title=lambda _: "LOG",
    body=body,
    needs=lambda *_: (2, 8),
    note=note,
    keys=keys,
    detail=detail,
    fields=lambda _: FIELDS,
    records=lambda inputs: [{"ts": entry.ts, **_fields_of(entry)} for entry in map(_told, _rows(inputs))],
    is_newest_last=True,
    grows=True,
)
