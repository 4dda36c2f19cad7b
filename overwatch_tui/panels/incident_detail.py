"""The selected incident in full, with its advice and the curve of its signal."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.render.chart_page import draw_charts
from esper_overwatch.overwatch_tui.render.format import format_clock, format_duration, format_number
from esper_overwatch.overwatch_tui.render.incident_rows import state_words
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, wrapped
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.theme import severity_label
from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES, advice, title_of
from esper_overwatch.protocol.messages.incidents import is_of_env

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
