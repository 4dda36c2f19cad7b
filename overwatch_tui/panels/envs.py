"""All envs: a table of one line each, and where not all fit a cell of one character each above it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from math import isfinite

from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.env_rows import (
    CELL_WIDTH,
    ENV_ORDERS,
    WORD_WIDTH,
    EnvRow,
    finite_mean,
    num_copies,
    slot_cells,
    sorted_rows,
    stage_counts,
    stage_text,
)
from esper_overwatch.overwatch_tui.render.format import (
    format_compact,
    format_number,
    format_percent,
    format_points,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, StyledText
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import Glyphs, severity_mark
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

from . import env as env_panel

ROWS, WIDE_ROWS, WIDE = 20, 30, 120
"""Rows of the table beside other panels, and from how many columns on there are more."""
_FIXED_WIDTH, _GAIN_WIDTH = 39, 7
"""Columns of what is always there, but the env's number; of the change of accuracy."""
_LAST_WIDTH, _LONG_LAST = 15, 26
"""Least columns of what is wrong, before words and before sparklines."""
_SPARK_WIDTH = 8
_SPARKS = (("accuracy", "ACC", "chart"), ("return", "RETURN", "chart2"))
MAX_FULL_SLOTS = 6
"""More slots than this are shown as one letter each, whatever the width."""


FIELDS = ("env", "st", "acc", "dacc", "return", "grad", "drift", "action", "anomaly")


def fields(inputs: PanelInputs) -> Sequence[str]:
    """Names that a filter may use: the columns and the slots."""
    return (*FIELDS, *inputs.state.slots)


def _fields_of(inputs: PanelInputs, row: EnvRow) -> dict[str, FieldValue]:
    """An env's: percent and points as the table shows them; a slot's stage and blueprint."""
    state, epoch = inputs.state, inputs.state.epoch
    found: dict[str, FieldValue] = {
        "env": row.env,
        "st": row.status,
        "acc": None if row.accuracy is None else 100 * row.accuracy,
        "dacc": None if row.change is None else 100 * row.change,
        "return": row.total,
        "grad": row.gradient,
        "drift": row.drift,
        "action": row.action,
        "anomaly": row.trouble,
    }
    if epoch is not None:
        for slot, name in enumerate(state.slots):
            stage = at_or_none(at_or_none(epoch.stage, row.env), slot)
            blueprint = at_or_none(at_or_none(epoch.blueprint, row.env), slot)
            words = [] if stage is None else [state.stage_name(stage), state.blueprint_name(blueprint)]
            found[name] = " ".join(words)
    return found


def _rows(inputs: PanelInputs) -> list[EnvRow]:
    """Envs that the filter shows, in the order of the view."""
    view = inputs.view
    return [row for row in sorted_rows(inputs) if view.passes("envs", partial(_fields_of, inputs, row))]


def title(inputs: PanelInputs) -> str:
    count = inputs.state.num_envs
    if "envs" in inputs.view.filters:
        return f"ENVS {len(_rows(inputs))} of {count}"
    if count and (copies := num_copies(inputs.state)) > 1:
        return f"ENVS {count}: {count // copies} hosts, {copies} copies each"
    return f"ENVS {count}" if count else "ENVS"


def note(inputs: PanelInputs) -> str:
    view = inputs.view
    words = [inputs.view.filter_note("envs")] if "envs" in inputs.view.filters else []
    count = len(keys(inputs))
    scroll = view.scroll.get("envs")
    if scroll is not None and scroll.height < count:
        words.append(f"{scroll.start + 1}-{min(count, scroll.start + scroll.height)} of {count}")
    if view.sort != "attention" or view.is_reversed:
        words.append(
            f"sort {view.sort} {inputs.glyphs.ascending if view.is_reversed else inputs.glyphs.descending}"
        )
    return "  ".join(words)


def keys(inputs: PanelInputs) -> Sequence[int]:
    """Envs in the order shown; in a grid every env can be selected."""
    return [row.env for row in _rows(inputs)]


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    """All rows, or cells of all envs above as many rows as are read at a glance."""
    count = inputs.state.num_envs
    rows = WIDE_ROWS if width >= WIDE else ROWS
    lines = count + 2 if count <= rows else len(_cells(inputs, _rows(inputs), width)) + rows + 2
    return min(lines, 5), lines


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Where not all rows fit, a cell for each env; header, one line per env, and their means."""
    found = _rows(inputs)
    lines: list[Line] = []
    if len(found) > height - 2:
        lines += _cells(inputs, found, width)[: max(1, height // 2)]
    table = _Table(inputs, width)
    lines.append(table.header())
    room = max(1, height - len(lines) - 1)
    order = [row.env for row in found]
    scroll = inputs.view.visible_rows("envs", order, room, top=len(lines))
    lines += [table.row(row) for row in found[scroll.rows]]
    if not found:
        text = inputs.empty_text("envs", "env", "no epoch has finished yet")
        lines.append(((f"   {text}", "dim"),))
    lines.append(table.means(found))
    return Drawn(lines, scroll)


def _cells(inputs: PanelInputs, found: list[EnvRow], width: int) -> list[Line]:
    """A cell per env, the worst first: the higher, the better its accuracy; a letter where it is flagged."""
    found = sorted(found, key=lambda row: (-SEVERITY_RANK[row.severity], _finite_accuracy(row), row.env))
    known = [row.accuracy for row in found if row.accuracy is not None and isfinite(row.accuracy)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    per_line = max(8, (width - 2) // 8 * 8)
    lines = []
    for begin in range(0, len(found), per_line):
        row = Row().put(" ")
        for env in found[begin : begin + per_line]:
            style = env.severity or ("dim" if env.status == "--" else "chart")
            cell = _cell(env, low, high, inputs.glyphs)
            row.put(cell, f"{style} select bold" if env.env == inputs.view.env else style)
        lines.append(row.line(width))
    levels = inputs.glyphs.spark
    shades = f" {levels[0]} {format_percent(low)} to {levels[-1]} {format_percent(high)} accuracy"
    shades = shades if known else " "
    flagged = sorted({row.status for row in found if row.is_flagged})
    letters = "".join(f"  {word[0].upper()} {word}" for word in flagged)
    return [*lines, Row().put(f"{shades}{letters}", "dim").line(width)]


def _finite_accuracy(row: EnvRow) -> float:
    return row.accuracy if row.accuracy is not None and isfinite(row.accuracy) else -1.0


def _cell(row: EnvRow, low: float, high: float, glyphs: Glyphs) -> str:
    """A letter for what is wrong, else the level of the accuracy."""
    if row.is_flagged:
        return row.status[0].upper()
    if row.accuracy is None or not isfinite(row.accuracy):
        return "-"
    levels = glyphs.spark
    return levels[round((row.accuracy - low) / (high - low) * (len(levels) - 1)) if high > low else -1]


class _Table:
    """The columns that fit the width: words before codes, the gain before sparklines."""

    def __init__(self, inputs: PanelInputs, width: int) -> None:
        self._inputs, self._width = inputs, width
        slots = len(inputs.state.slots)
        self._digits = max(3, len(str(max(inputs.state.num_envs - 1, 0))) + 1)
        room = width - self._digits - _FIXED_WIDTH - _LAST_WIDTH
        widths = (WORD_WIDTH, CELL_WIDTH) if slots <= MAX_FULL_SLOTS else ()
        self._cell = next((each for each in widths if each * slots <= room), 1)
        self._slots_width = self._cell * slots if self._cell > 1 else max(slots + 1, 5)
        room -= self._slots_width
        self._gain = _GAIN_WIDTH if room >= _GAIN_WIDTH else 0
        spare = room - self._gain - _LONG_LAST + _LAST_WIDTH
        self._sparks = _SPARKS[: max(0, spare // (_SPARK_WIDTH + 1))]

    def _arrow(self, name: str) -> str:
        view = self._inputs.view
        if view.sort != name:
            return ""
        return self._inputs.glyphs.ascending if view.is_reversed else self._inputs.glyphs.descending

    def header(self) -> Line:
        row = Row()
        widths = (self._digits + 1, 9, 6, self._gain, 8, 7, 7)
        for (name, (heading, _, _)), width in zip(ENV_ORDERS.items(), widths, strict=True):
            text, align = (f" {heading}", "<") if name == "attention" else (heading, ">")
            if width:
                row.put(text + self._arrow(name), "key" if self._arrow(name) else "dim", width, align)
        row.put(" ")
        if self._cell == 1:
            row.put("SLOTS", "dim", self._slots_width)
        else:
            for slot in self._inputs.state.slots:
                row.put(slot, "dim", self._cell)
        for _, title, _ in self._sparks:
            row.put(f" {title}", "dim", _SPARK_WIDTH + 1)
        return row.put(" LAST", "dim").line(self._width)

    def row(self, env: EnvRow) -> Line:
        inputs, glyphs = self._inputs, self._inputs.glyphs
        selected = env.env == inputs.view.env
        row = Row()
        row.put(glyphs.cursor if selected else " ", "focus").put(f"{env.env:02d}", "bold", self._digits, ">")
        row.put(" ").put(env.status, env.severity or ("dim" if env.status == "--" else "ok"), 8)
        row.put(format_percent(env.accuracy), "", 6, ">")
        row.put(*_trend(env.change, glyphs))
        if self._gain:
            row.put(format_points(env.change), "dim", self._gain - 1, ">")
        row.put(format_number(env.total, "+.2f"), "", 7, ">").put(format_compact(env.gradient, 6), "", 7, ">")
        row.put(format_compact(env.drift, 5), env.drift_severity or "dim", 6, ">")
        row.put(severity_mark(env.drift_severity), env.drift_severity or "").put(" ")
        for text, style in slot_cells(inputs.state, env.env, glyphs, words=self._cell == WORD_WIDTH):
            row.put(text[0] if self._cell == 1 else text, style, self._cell)
        if self._cell == 1:
            row.to(row.width + self._slots_width - len(inputs.state.slots))
        for curve, _, style in self._sparks:
            row.put(" ").put(inputs.sparkline(f"{curve}/{env.env}", _SPARK_WIDTH), style)
        style = (env.severity if env.trouble else None) or "dim"
        said = env.trouble or env.action
        if row.width + len(said) >= self._width:
            plain, room = said.partition(f" {glyphs.times}")[0], self._width - row.width - 1
            said = textwrap.shorten(plain, max(4, room), placeholder=glyphs.cut)
        return row.put(" ").put(said, style).line(self._width, selected=selected)

    def means(self, found: list[EnvRow]) -> Line:
        """The last line: means over envs, and how many slots are in each stage."""
        if not found:
            return EMPTY
        flagged = sum(row.is_flagged for row in found)
        row = Row().put(" " * (self._digits - 2)).put("ALL", "bold").put(" ")
        healthy = f"{sum(r.status == 'ok' for r in found)} ok"
        row.put(healthy, "ok" if not flagged else "", 8)
        row.put(format_percent(finite_mean([r.accuracy for r in found])), "bold", 6, ">").put(" ")
        if self._gain:
            row.put(format_points(finite_mean([r.change for r in found])), "dim", self._gain - 1, ">")
        row.put(format_number(finite_mean([r.total for r in found]), "+.2f"), "bold", 7, ">")
        row.put(format_compact(finite_mean([r.gradient for r in found]), 6), "dim", 7, ">")
        row.put(format_compact(finite_mean([r.drift for r in found]), 5), "dim", 6, ">").put("  ")
        if flagged:
            row.put(f"{flagged} flagged  ", "warning")
        for name, count in stage_counts(self._inputs.state).items():
            text = f"{stage_text(name, words=self._cell == WORD_WIDTH)}{count}"
            if row.width + len(text) <= self._width:
                row.put(text, name.lower()).put(" ")
        return row.line(self._width)


def _trend(change: float | None, glyphs: Glyphs) -> StyledText:
    if change is None or change != change:
        return " ", "faint"
    if abs(change) <= 0.0005:
        return glyphs.flat, "faint"
    return (glyphs.up, "ok") if change > 0 else (glyphs.down, "pruned")


RENDERER = Renderer(
    title=title,
    body=body,
    needs=needs,
    note=note,
    keys=keys,
    detail=env_panel.detail,
    charts=env_panel.charts,
    fields=fields,
    records=lambda inputs: [_fields_of(inputs, row) for row in _rows(inputs)],
)
