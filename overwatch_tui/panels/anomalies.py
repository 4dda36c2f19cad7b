"""Anomalies, active and over: the unacknowledged ones first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from esper_overwatch.overwatch_tui.model.anomalies import AnomalyRecord
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.anomaly_rows import (
    ANOMALY_FIELDS,
    anomaly_fields,
    current_anomaly,
    listed_anomalies,
)
from esper_overwatch.overwatch_tui.render.format import format_clock, format_duration, format_number
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.overview import fill_with_charts
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import severity_label

from .anomaly_detail import curve_of, detail_lines, history_lines

MIN_DETAIL_LINES = 20
"""Lines left under the list that are worth the selected record's curve."""


def num_waiting(inputs: PanelInputs) -> int:
    return len(inputs.state.anomalies.open_records(inputs.now))


def title(inputs: PanelInputs) -> str:
    return f"ANOMALIES {num_waiting(inputs)} unacked"


def note(inputs: PanelInputs) -> str:
    return inputs.view.filter_note("anomalies") or "a ack  m mute"


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    return [record.key for record in listed_anomalies(inputs)]


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return 2, min(8, max(4, len(inputs.state.anomalies) + 1))


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A line per record; below, the selected one's hint, or counts by hour and its detail."""
    records = listed_anomalies(inputs)
    if not records and "anomalies" in inputs.view.filters:
        text = inputs.view.empty_text("anomalies", "anomaly", "")
        return Drawn([Row().put(f" {text}", "dim").line(width)])
    if not records:
        fresh = inputs.link.is_current and inputs.state.is_measured
        text = "none since this terminal joined" if fresh else "nothing measured yet"
        lines = [Row().put(f" {text}", "ok" if fresh else "dim").line(width)]
        if inputs.view.name == "anomalies":
            lines = fill_with_charts(inputs, [*lines, EMPTY, *history_lines(inputs, width)], width, height)
        return Drawn(lines)
    if inputs.view.name != "anomalies":
        return _list(inputs, records, width, height)
    below = height - len(records)
    # The counts are of all anomalies: beside a filtered list they would mislead.
    counts = [] if "anomalies" in inputs.view.filters else [EMPTY, *history_lines(inputs, width)]
    listed = _list(inputs, records, width, min(height - len(counts), len(records)))
    if below < MIN_DETAIL_LINES:
        fill = [EMPTY] * (height - len(listed.lines) - len(counts))
        return listed._replace(lines=[*listed.lines, *fill, *counts])
    full = detail(inputs, width, below - len(counts) - 1)
    return listed._replace(lines=[*listed.lines, *counts, EMPTY, *full.lines])


def _list(inputs: PanelInputs, records: list[AnomalyRecord], width: int, height: int) -> Drawn:
    order = [record.key for record in records]
    hint = height >= 6 and inputs.view.name != "anomalies"
    scroll = inputs.view.visible_rows("anomalies", order, height - hint, top=0)
    current = current_anomaly(inputs)
    at = inputs.view.selected_index("anomalies", order)
    at = order.index(current.key) if current is not None and current.key in order else at
    lines = [
        _line(inputs, record, width, selected=i == at)
        for i, record in enumerate(records[scroll.rows], scroll.start)
    ]
    if hint and records[at].hint:
        lines += [EMPTY] * (height - len(lines) - 1)
        lines.append(Row().put(f" {inputs.glyphs.arrow} {records[at].hint}", "accent").line(width))
    return Drawn(lines, scroll)


def _line(inputs: PanelInputs, record: AnomalyRecord, width: int, *, selected: bool) -> Line:
    over = not record.active
    style = record.severity if record.is_waiting else "dim"
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    row.put("!" if record.is_waiting else " ", style)
    row.put("over" if over else severity_label(record.severity), style, 5)
    wide = width >= 70
    row.put(record.source, "bold" if record.is_waiting else "", 17 if wide else None).put(" ")
    value = format_number(record.value, ".3g")
    tail = [format_duration(inputs.seconds_since(record.first if record.active else record.last))]
    if record.count > 1:
        tail.insert(0, f"{inputs.glyphs.times}{record.count}")
    if record.is_muted(inputs.now):
        tail.insert(0, "muted")
    if record.is_acked:
        tail.insert(0, "acked")
    if wide:
        row.put(record.kind, style, 22).put(value, style, 8, ">")
        row.put(f" limit {format_number(record.threshold, '.3g')}", "dim", 13)
        if width >= 110:
            row.put(f"peak {format_number(record.peak, '.3g')}", "dim", 13)
            row.put(f"since {format_clock(record.first)} ", "dim")
    else:
        row.put(record.short_kind, style).put(f" {value}", style)
    text = " ".join(tail)
    room = width - 1 - len(text)
    if row.width > room - 1:
        row = Row().add(row.line(max(1, room - 1)))
    return row.to(room).put(text, "dim").line(width, selected=selected)


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    records = listed_anomalies(inputs)
    if not records:
        return body(inputs, width, height)
    record = records[inputs.view.selected_index("anomalies", [r.key for r in records])]
    return Drawn(detail_lines(inputs, record, width, height))


def charts(inputs: PanelInputs) -> list[str]:
    """Curve of the selected record's signal."""
    records = listed_anomalies(inputs)
    if not records:
        return []
    name = curve_of(records[inputs.view.selected_index("anomalies", [r.key for r in records])])
    return [name] if inputs.history(name) is not None else []


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    return [
        {**anomaly_fields(one, inputs.now), "first": one.first, "last": one.last}
        for one in listed_anomalies(inputs)
    ]


RENDERER = Renderer(
    title=title,
    body=body,
    needs=needs,
    note=note,
    keys=keys,
    detail=detail,
    fields=lambda _: ANOMALY_FIELDS,
    records=records,
    charts=charts,
    num_waiting=num_waiting,
)
