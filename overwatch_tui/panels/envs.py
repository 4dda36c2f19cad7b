"""All envs: a table of one line each, or a grid of one character each above those that need a look."""

from __future__ import annotations

from collections.abc import Sequence

from ..envrows import CELL, LETTERS, EnvRow, cells, compact, mean, rows, stage_counts
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from ..theme import Glyphs, letter
from . import env as env_panel

FULL_CELLS = 6
"""More slots than this are shown as one letter each, whatever the width."""


def title(frame: Frame) -> str:
    return f"ENVS {frame.state.envs}" if frame.state.envs else "ENVS"


def note(frame: Frame) -> str:
    view = frame.view
    words = []
    shown = view.top.get("envs", 0)
    count = len(keys(frame))
    page = view.top.get("envs.page", count)
    if page < count:
        words.append(f"{shown + 1}-{min(count, shown + page)} of {count}")
    if view.sort != "env" or view.reverse:
        words.append(
            f"sort {view.sort} {frame.glyphs.ascending if view.reverse else frame.glyphs.descending}"
        )
    return "  ".join(words)


def _chosen(frame: Frame) -> list[EnvRow]:
    """The rows of the table: all, or under a grid only the flagged and the selected ones."""
    found = rows(frame)
    if frame.view.table_mode(len(found)) == "table":
        return found
    return [row for row in found if row.flagged or row.env == frame.view.env]


def keys(frame: Frame) -> Sequence[int]:
    """Envs in the order shown; in a grid every env can be selected."""
    return [row.env for row in rows(frame)]


def needs(frame: Frame, width: int) -> tuple[int, int]:
    count = frame.state.envs
    if frame.view.table_mode(count) == "grid":
        lines = len(_grid(frame, rows(frame), width)) + len(_chosen(frame)) + 3
        return min(lines, 8), lines
    return min(count, 3) + 2, count + 2


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """Header, one line per env, and their means."""
    everything = rows(frame)
    chosen = everything
    lines: list[Line] = []
    if frame.view.table_mode(len(everything)) == "grid":
        lines += _grid(frame, everything, width)[: max(1, height - 5)]
        lines.append(EMPTY)
        chosen = _chosen(frame)
    table = _Table(frame, width)
    lines.append(table.header())
    room = max(1, height - len(lines) - 1)
    order = [row.env for row in chosen]
    start, stop = frame.view.visible("envs", order, room)
    frame.view.top["envs.page"] = room
    lines += [table.row(row) for row in chosen[start:stop]]
    if not everything:
        lines.append((("   no epoch has finished yet", "dim"),))
    lines.append(table.means(everything))
    if everything and height > len(lines):
        lines.append(env_panel.figures(frame, frame.view.env, width))
    return lines


def _grid(frame: Frame, found: list[EnvRow], width: int) -> list[Line]:
    """One character per env, as many as fit a line."""
    per_line = max(8, (width - 8) // 8 * 8)
    lines = []
    for begin in range(0, len(found), per_line):
        row = Row().put(f" {begin:>4} ", "dim")
        for env in found[begin : begin + per_line]:
            style = env.severity or ("dim" if env.status == "--" else "ok")
            row.put(_symbol(env), f"{style} select bold" if env.env == frame.view.env else style)
        lines.append(row.line(width))
    legend = (
        Row().put("      ", "").put(". ok  S stalled  W warning  C critical  R rolled back  - no data", "dim")
    )
    return [*lines, legend.line(width)]


def _symbol(row: EnvRow) -> str:
    return {"ok": ".", "--": "-"}.get(row.status, row.status[0])


class _Table:
    """The columns that fit the width."""

    def __init__(self, frame: Frame, width: int) -> None:
        self._frame = frame
        self._width = width
        slots = frame.state.slots
        self._digits = max(3, len(str(max(frame.state.envs - 1, 0))) + 1)
        fixed = 43 + self._digits
        self._note = 12
        room = width - fixed - self._note
        self._letters = len(slots) > FULL_CELLS or len(slots) * CELL > room
        self._slots_width = max(len(slots) + 1, 5) if self._letters else len(slots) * CELL
        room -= self._slots_width
        self._action = room >= 16
        room -= 16 if self._action else 0
        self._sparks = 8 if room >= 20 else 0
        self._note = (
            width
            - fixed
            - self._slots_width
            - 16 * self._action
            - 2 * (self._sparks + 1) * bool(self._sparks)
        )

    def _arrow(self, name: str) -> str:
        view = self._frame.view
        if view.sort != name:
            return ""
        return self._frame.glyphs.ascending if view.reverse else self._frame.glyphs.descending

    def header(self) -> Line:
        row = Row()
        columns = (
            ("ENV", self._digits + 1, "env"), (" ST", 5, "status"), ("ACC", 6, "accuracy"),
            ("dACC", 7, "change"), ("RETURN", 8, "return"), ("GRAD", 7, "gradient"), ("DRIFT", 7, "drift"),
        )  # fmt: skip
        for text, width, name in columns:
            align = "<" if name == "status" else ">"
            row.put(text + self._arrow(name), "key" if self._arrow(name) else "dim", width, align)
        row.put("  ")
        if self._letters:
            row.put("SLOTS", "dim", self._slots_width)
        else:
            for slot in self._frame.state.slots:
                row.put(slot, "dim", CELL)
        if self._sparks:
            row.put(" ACC", "dim", self._sparks + 1).put(" RETURN", "dim", self._sparks + 1)
        if self._action:
            row.put(" LAST ACTION", "dim", 16)
        return row.put(" ANOMALY" if self._action else " LAST", "dim").line(self._width)

    def row(self, env: EnvRow) -> Line:
        frame, glyphs = self._frame, self._frame.glyphs
        selected = env.env == frame.view.env
        dim = "" if frame.link.fresh else "dim"
        row = Row()
        row.put(glyphs.cursor if selected else " ", "focus").put(f"{env.env:02d}", "bold", self._digits, ">")
        row.put(" ").put(env.status, env.severity or ("dim" if env.status == "--" else "ok"), 4)
        row.put(_percent(env.accuracy), dim, 6, ">").put(_trend(env.change, glyphs), _trend_style(env.change))
        row.put(_points(env.change), "dim", 6, ">")
        row.put(_signed(env.total), dim, 8, ">").put(compact(env.gradient, 6), dim, 7, ">")
        row.put(compact(env.drift, 5), env.drift_severity or "dim", 6, ">")
        row.put(letter(env.drift_severity), env.drift_severity or "").put("  ")
        for text, style in cells(frame.state, env.env, glyphs):
            row.put(text[0] if self._letters else text, style, 1 if self._letters else CELL)
        if self._letters:
            row.to(row.width + self._slots_width - len(frame.state.slots))
        if self._sparks:
            row.put(" ").put(frame.spark(f"accuracy/{env.env}", self._sparks), "chart")
            row.put(" ").put(frame.spark(f"return/{env.env}", self._sparks), "chart2")
        if self._action:
            row.put(" ").put(env.action, "dim", 15)
        if env.trouble:
            row.put(" ").put(env.trouble, env.severity or "dim")
        elif not self._action:
            row.put(" ").put(env.action, "dim")
        line = row.line(self._width)
        return restyle(line, "select") if selected else line

    def means(self, found: list[EnvRow]) -> Line:
        """The last line: means over envs, and how many slots are in each stage."""
        if not found:
            return EMPTY
        flagged = sum(row.flagged for row in found)
        row = Row().put(" " * (self._digits - 2)).put("ALL", "bold").put(" ")
        row.put(f"{sum(r.status == 'ok' for r in found)}ok", "ok" if not flagged else "", 4)
        row.put(_percent(mean([r.accuracy for r in found])), "bold", 6, ">").put(" ")
        row.put(_points(mean([r.change for r in found])), "dim", 6, ">")
        row.put(_signed(mean([r.total for r in found])), "bold", 8, ">")
        row.put(compact(mean([r.gradient for r in found]), 6), "dim", 7, ">")
        row.put(compact(mean([r.drift for r in found]), 5), "dim", 6, ">").put("   ")
        for name, count in stage_counts(self._frame.state).items():
            if name != "DORMANT":
                row.put(f"{LETTERS.get(name, '?')}{count} ", name.lower())
        if flagged:
            row.put(f" {flagged} flagged", "warning")
        return row.line(self._width)


def _percent(share: float | None) -> str:
    return "--" if share is None else f"{100 * share:.1f}"


def _points(change: float | None) -> str:
    return "--" if change is None else f"{100 * change:+.1f}"


def _signed(value: float | None) -> str:
    return "--" if value is None else f"{value:+.2f}"


def _trend(change: float | None, glyphs: Glyphs) -> str:
    if change is None or change != change:
        return " "
    return glyphs.up if change > 0.0005 else glyphs.down if change < -0.0005 else glyphs.flat


def _trend_style(change: float | None) -> str:
    return "ok" if (change or 0) > 0.0005 else "pruned" if (change or 0) < -0.0005 else "faint"


PANEL = Panel(name="envs", title=title, body=body, needs=needs, note=note, keys=keys, detail=env_panel.detail)
