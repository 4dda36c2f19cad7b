"""Anomalies, active and over: the unacknowledged ones first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from overwatch_tui.model.anomalies import LIMIT_SUFFIX, AnomalyRecord
from overwatch_tui.model.filters import Value
from overwatch_tui.render.chart_page import draw_charts
from overwatch_tui.render.format import format_clock, format_duration, format_number
from overwatch_tui.render.lines import EMPTY, Line, Row, restyle
from overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from overwatch_tui.render.theme import severity_label

MIN_DETAIL_LINES = 20
"""Lines left under the list that are worth the selected record's curve."""


FIELDS = ("source", "kind", "sev", "value", "limit", "peak", "count", "state", "hint")


def fields(_inputs: PanelInputs) -> Sequence[str]:
    """What a filter may name."""
    return FIELDS


def _rows(inputs: PanelInputs) -> list[AnomalyRecord]:
    """Those that the filter shows, in the order of the list."""
    found = inputs.state.anomalies.ordered()
    now = inputs.now
    return [each for each in found if inputs.view.passes("anomalies", partial(_fields_of, each, now))]


def _fields_of(record: AnomalyRecord, now: int) -> dict[str, Value]:
    return {
        "source": record.source,
        "kind": record.kind,
        "sev": severity_label(record.severity),
        "value": record.value,
        "limit": record.threshold,
        "peak": record.peak,
        "count": record.count,
        "state": _state_words(record, now),
        "hint": record.hint,
    }


def num_waiting(inputs: PanelInputs) -> int:
    """How many are neither acknowledged nor muted nor over."""
    return len(inputs.state.anomalies.open_records(inputs.now))


def title(inputs: PanelInputs) -> str:
    return f"ANOMALIES {num_waiting(inputs)} unacked"


def note(inputs: PanelInputs) -> str:
    return inputs.view.filter_note("anomalies") or "a ack  m mute"


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    return [record.key for record in _rows(inputs)]


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return 2, min(8, max(4, len(inputs.state.anomalies) + 1))


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """One line each; below them the hint of the selected one, or its detail where there is room."""
    records = _rows(inputs)
    if not records and "anomalies" in inputs.view.filters:
        text = f" no anomaly passes {inputs.view.filter_note('anomalies')}; Esc shows all"
        return Drawn([Row().put(text, "dim").line(width)])
    if not records:
        fresh = inputs.link.is_current and inputs.state.epoch is not None
        text = "none since this terminal joined" if fresh else "nothing measured yet"
        return Drawn([Row().put(f" {text}", "ok" if fresh else "dim").line(width)])
    if inputs.view.name == "anomalies" and height - len(records) >= MIN_DETAIL_LINES:
        listed = _list(inputs, records, width, len(records))
        full = detail(inputs, width, height - len(listed.lines) - 1)
        return listed._replace(lines=[*listed.lines, EMPTY, *full.lines])
    return _list(inputs, records, width, height)


def _list(inputs: PanelInputs, records: list[AnomalyRecord], width: int, height: int) -> Drawn:
    order = [record.key for record in records]
    hint = height >= 6 and inputs.view.name != "anomalies"
    scroll = inputs.view.visible_rows("anomalies", order, height - hint, top=0)
    at = inputs.view.selected_index("anomalies", order)
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
    line = row.to(room).put(text, "dim").line(width)
    return restyle(line, "select") if selected else line


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The selected record in full, with the curve of its signal where one is kept."""
    records = _rows(inputs)
    if not records:
        return body(inputs, width, height)
    record = records[inputs.view.selected_index("anomalies", [r.key for r in records])]
    row = Row().put(f" {record.source} ", "title").put(record.kind, "bold").put("  ")
    row.put(severity_label(record.severity), record.severity).put("" if record.active else "  over", "dim")
    lines = [row.line(width), EMPTY]
    facts = (
        ("value", format_number(record.value, ".4g")),
        ("limit", format_number(record.threshold, ".4g")),
        ("peak", format_number(record.peak, ".4g")),
        ("times", str(record.count)),
        ("first", _when(inputs, record.first)),
        ("last", _when(inputs, record.last)),
        ("state", _state_words(record, inputs.now)),
        ("what to do", record.hint or "--"),
        *_seen_by(record, inputs.now),
    )
    lines += [Row().put(f"   {name:<11}", "dim").put(value).line(width) for name, value in facts]
    name = _series_name(record)
    room = height - len(lines) - 1
    if inputs.history(name) is not None and room >= 5:
        lines += [EMPTY, *draw_charts(inputs, [name], width, room)]
    return Drawn(lines)


def _when(inputs: PanelInputs, ts: int) -> str:
    return f"{format_clock(ts)}  ({format_duration(inputs.seconds_since(ts))} ago)"


def _seen_by(record: AnomalyRecord, now: int) -> list[tuple[str, str]]:
    """Who has acknowledged and muted it, and why."""
    found = []
    if record.acknowledged is not None:
        seen = record.acknowledged
        found.append(("seen by", f"{seen.by}, {format_clock(seen.ts)}  {seen.reason}".rstrip()))
    if record.is_muted(now):
        found.append(("muted by", f"{record.mute.by}  {record.mute.reason}".rstrip()))
    return found


def _state_words(record: AnomalyRecord, now: int) -> str:
    words = ["active" if record.active else "over"]
    if record.is_acked or record.is_waiting:
        words.append("acknowledged" if record.is_acked else "not acknowledged (a)")
    if record.is_muted(now):
        words.append(f"muted for {format_duration((record.mute.until - now) / 1e6)} more (m)")
    return ", ".join(words)


def _series_name(record: AnomalyRecord) -> str:
    """The history that shows what the record is about."""
    if record.env is not None and "drift" not in record.kind:
        return f"accuracy/{record.env}"
    policy = {
        "kl_spike": "ppo.approx_kl",
        "clip_fraction": "ppo.clip_fraction",
        "entropy_collapse": "ppo.entropy",
        "value_collapse": "ppo.explained_variance",
        "ratio_explosion": "ppo.ratio_max",
        "ratio_collapse": "ppo.ratio_min",
        "lstm_saturated": "ppo.lstm_h_rms",
        "slow_update": "ppo.seconds",
        "memory": "memory",
    }
    if record.kind.endswith(LIMIT_SUFFIX):
        return f"ppo.{record.kind.removesuffix(LIMIT_SUFFIX)}"
    if record.kind == "health_drift":
        return f"health/{record.source}"
    return policy.get(record.kind, f"drift/{record.source}")


def charts(inputs: PanelInputs) -> list[str]:
    """What the selected record is about."""
    records = _rows(inputs)
    if not records:
        return []
    name = _series_name(records[inputs.view.selected_index("anomalies", [r.key for r in records])])
    return [name] if inputs.history(name) is not None else []


def records(inputs: PanelInputs) -> list[dict[str, Value]]:
    """What an export has of each row."""
    return [{**_fields_of(one, inputs.now), "first": one.first, "last": one.last} for one in _rows(inputs)]


RENDERER = Renderer(
    title=title,
    body=body,
    needs=needs,
    note=note,
    keys=keys,
    detail=detail,
    fields=fields,
    records=records,
    charts=charts,
    num_waiting=num_waiting,
)
