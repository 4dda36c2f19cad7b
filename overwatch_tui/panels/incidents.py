"""Incidents, open and over, the unacknowledged ones first; each in full with advice and its curve."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.render.chart_page import draw_charts, fill_with_charts
from esper_overwatch.overwatch_tui.render.format import format_clock, format_duration, format_number
from esper_overwatch.overwatch_tui.render.incident_rows import (
    INCIDENT_FIELDS,
    current_incident,
    incident_fields,
    listed_incidents,
    selected_incident,
    state_words,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, cut_text, wrapped
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import severity_label
from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES, advice, title_of
from esper_overwatch.protocol.messages.incidents import is_of_env

MIN_DETAIL_LINES = 12
"""Lines left under the list that are worth the selected record's guide."""
LABEL = 11
"""Columns of the names at the left."""
MIN_CHART_LINES = 5
_CURVES = {
    "kl_spike": "ppo.approx_kl",
    "clip_fraction": "ppo.clip_fraction",
    "entropy_collapse": "ppo.entropy",
    "value_collapse": "ppo.explained_variance",
    "ratio_explosion": "ppo.ratio_max",
    "lstm_saturated": "ppo.lstm_h_rms",
    "slow_update": "ppo.seconds",
    "memory": "memory",
}


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


def detail_lines(inputs: PanelInputs, record: IncidentRecord, width: int, height: int) -> list[Line]:
    """A record in full: what, since when, after what, what to do; where there is room its signal's curve."""
    data = record.data
    row = Row().put(f" {severity_label(data.severity)} ", data.severity).put(data.title, "title")
    row.put(f"  {data.scope}", "bold").put("" if data.active else "  over", "dim")
    lines = [row.line(width)]
    for name, text in (*_facts(inputs, record), *_advice(record)):
        lines += fact_lines(name, text, width)
    name, room = curve_of(record), height - len(lines) - 1
    if inputs.history(name) is not None and room >= MIN_CHART_LINES:
        lines += [EMPTY, *draw_charts(inputs, [name], width, room)]
    return lines


def _facts(inputs: PanelInputs, record: IncidentRecord) -> list[tuple[str, str]]:
    data = record.data
    kinds = sorted(data.kinds.items(), key=lambda pair: -pair[1])
    figures = [f"{data.source} {format_number(data.value, '.4g')}"] if data.value is not None else []
    figures += [f"limit {format_number(data.threshold, '.4g')}"] if data.threshold is not None else []
    since = f"{format_clock(data.since)}  ({format_duration(inputs.seconds_since(data.since))} ago)"
    return [
        *cause(record),
        ("signals", ", ".join(f"{title_of(kind)} {count}" for kind, count in kinds)),
        *([("worst", ", ".join(figures))] if figures else []),
        ("since", f"{since}, over {format_clock(data.over)}" if data.over else since),
        ("state", state_words(record, inputs.now)),
        *_seen_by(record, inputs.now),
    ]


def cause(record: IncidentRecord) -> list[tuple[str, str]]:
    """The change that is suspected, and what undoes it; none = nothing is."""
    data = record.data
    found = []
    if data.suspect:
        before = max(0, data.since - data.suspect_ts) / 1e6
        when = f", {format_duration(before)} before" if data.suspect_ts else ""
        found.append(("suspect", data.suspect + when))
    if data.undo:
        found.append(("undo", f":{data.undo}   (key U)"))
    return found


def _advice(record: IncidentRecord) -> list[tuple[str, str]]:
    """Meaning, usual causes where nothing is suspected, and steps to try."""
    data = record.data
    guide = ANOMALY_GUIDES.get(data.kind)
    found = []
    if guide is not None:
        found = [("means", guide.meaning)]
        found += [] if data.suspect else [("usually", "; ".join(guide.causes))]
    steps = advice(data.kind, data.undo)
    return found + [("" if i else "try", f"{i + 1}. {step}") for i, step in enumerate(steps)]


def fact_lines(name: str, text: str, width: int) -> list[Line]:
    return wrapped(text, width, label=f"   {name}", column=3 + LABEL)


def _seen_by(record: IncidentRecord, now: int) -> list[tuple[str, str]]:
    """Authors and reasons of the acknowledgement and the mute."""
    found = []
    if record.acknowledged is not None:
        seen, at = record.acknowledged, format_clock(record.acknowledged_ts)
        found.append(("seen by", f"{seen.by}, {at}  {seen.reason}".rstrip()))
    if record.is_muted(now):
        found.append(("muted by", f"{record.mute.by}  {record.mute.reason}".rstrip()))
    return found


def curve_of(record: IncidentRecord) -> str:
    """The curve that shows what the record is about."""
    source, kind = record.data.source, record.data.kind
    if is_of_env(source) and "drift" not in kind:
        return f"accuracy/{int(source[3:].partition('.')[0])}"
    if kind == "health_drift":
        return f"health/{source}"
    return _CURVES.get(kind, f"drift/{source}")


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
