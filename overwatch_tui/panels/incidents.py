"""Incidents, open and over: the unacknowledged ones first."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.format import format_duration
from esper_overwatch.overwatch_tui.render.incident_rows import (
    INCIDENT_FIELDS,
    current_incident,
    incident_fields,
    listed_incidents,
    selected_incident,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, cut_text
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import severity_label

from .incident_detail import curve_of, detail_lines

MIN_DETAIL_LINES = 12
"""Lines left under the list that are worth the selected record's guide."""


def num_waiting(inputs: PanelInputs) -> int:
    return len(inputs.state.incidents.unseen(inputs.now))


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    """Beside other panels it lists more than the line under the header, which has the worst."""
    known = inputs.state.incidents.open()
    return (2, min(8, len(known) + 2)) if len(known) > 1 else (0, 0)


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A line per record; in its own view, below, the selected one's guide."""
    records = listed_incidents(inputs)
    if not records and "incidents" in inputs.view.filters:
        text = inputs.empty_text("incidents", "incident", "")
        return Drawn([Row().put(f" {text}", "dim").line(width)])
    if not records:
        fresh = inputs.link.is_current and inputs.state.is_measured
        text = "none since the run was started" if inputs.state.is_measured else "nothing measured yet"
        lines = [Row().put(f" {text}", "ok" if fresh else "dim").line(width)]
        return Drawn(fill_with_charts(inputs, lines, width, height) if inputs.is_alone else lines)
    listed = _list(inputs, records, width, min(height, len(records)))
    below = height - len(records)
    if not inputs.is_alone or below < MIN_DETAIL_LINES:
        return listed
    _, *guide = detail(inputs, width, below).lines  # its title is the selected row
    return listed._replace(lines=[*listed.lines, EMPTY, *guide])


def _list(inputs: PanelInputs, records: list[IncidentRecord], width: int, height: int) -> Drawn:
    order = [record.key for record in records]
    scroll = inputs.view.visible_rows("incidents", order, height, top=0)
    current = current_incident(inputs)
    at = inputs.view.selected_index("incidents", order)
    at = order.index(current.key) if current is not None and current.key in order else at
    lines = [
        _line(inputs, record, width, selected=i == at)
        for i, record in enumerate(records[scroll.rows], scroll.start)
    ]
    return Drawn(lines, scroll)


def _line(inputs: PanelInputs, record: IncidentRecord, width: int, *, selected: bool) -> Line:
    data = record.data
    style = data.severity if record.is_waiting else "dim"
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    row.put("!" if record.is_waiting else " ", style)
    row.put(severity_label(data.severity) if data.active else "over", style, 5)
    row.put(data.title, style).put(f"  {data.scope}", "bold" if record.is_waiting else "")
    tail = [format_duration(inputs.seconds_since(data.over or data.since))]
    if record.is_muted(inputs.now):
        tail.insert(0, "muted")
    if record.is_acked:
        tail.insert(0, "acked")
    text = " ".join(tail)
    room = width - 1 - len(text)
    if data.suspect and room - row.width > 24:
        row.put("  after ", "dim").put(cut_text(data.suspect, room - row.width - 2), "accent")
    if row.width > room - 1:
        row = Row().add(row.line(max(1, room - 1)))
    return row.to(room).put(text, "dim").line(width, selected=selected)


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    record = selected_incident(inputs)
    if record is None:
        return body(inputs, width, height)
    return Drawn(detail_lines(inputs, record, width, height))


def charts(inputs: PanelInputs) -> list[str]:
    """Curve of the selected record's signal."""
    record = selected_incident(inputs)
    name = "" if record is None else curve_of(record)
    return [name] if inputs.history(name) is not None else []


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    return [
        {**incident_fields(one, inputs.now), "since": one.data.since, "over": one.data.over}
        for one in listed_incidents(inputs)
    ]


RENDERER = Renderer(
    title=lambda inputs: f"INCIDENTS {num_waiting(inputs)} unacked",
    body=body,
    needs=needs,
    note=lambda inputs: inputs.view.filter_note("incidents") or "a ack",
    keys=lambda inputs: [record.key for record in listed_incidents(inputs)],
    detail=detail,
    fields=lambda _: INCIDENT_FIELDS,
    records=records,
    charts=charts,
    num_waiting=num_waiting,
)
