"""The selected anomaly in full, with its advice and the curve of its signal; how many there were by hour."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from esper_overwatch.overwatch_tui.model.anomalies import AnomalyRecord
from esper_overwatch.overwatch_tui.model.limits import LIMIT_SUFFIX, kind_of_daemon
from esper_overwatch.overwatch_tui.render.anomaly_rows import state_words
from esper_overwatch.overwatch_tui.render.chart_page import draw_charts
from esper_overwatch.overwatch_tui.render.format import format_clock, format_duration, format_number
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.theme import severity_label
from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES

LABEL = 11
"""Columns of the names at the left."""
HOURS = 24
MIN_CHART_LINES = 5
_CURVES = {
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


def history_lines(inputs: PanelInputs, width: int) -> list[Line]:
    """Warnings and criticals that were raised in each hour of the last day, and of which kinds."""
    history, now = inputs.state.anomaly_history, inputs.now
    lines = [Row().put(f" raised by hour, {HOURS}h", "title").line(width)]
    for severity in ("critical", "warning"):
        counts = history.by_hour(severity, now, HOURS)
        row = Row().put(f"   {severity:<{LABEL}}", "dim").put(_bars(inputs, counts), severity)
        row.put(f"{sum(counts):>6}", severity if sum(counts) else "dim").put("  ")
        kinds = history.by_kind(severity, now, HOURS)
        row.put(", ".join(f"{kind} {count}" for kind, count in kinds), "dim")
        lines.append(row.line(width))
    return lines


def _bars(inputs: PanelInputs, counts: Sequence[int]) -> str:
    """A column per hour; a dot where there were none."""
    levels, most = inputs.glyphs.spark, max(counts)
    return "".join(levels[(len(levels) - 1) * count // most] if count else "." for count in counts)


def detail_lines(inputs: PanelInputs, record: AnomalyRecord, width: int, height: int) -> list[Line]:
    """A record in full: figures, state, advice, and where there is room the curve of its signal."""
    row = Row().put(f" {record.source} ", "title").put(record.kind, "bold").put("  ")
    row.put(severity_label(record.severity), record.severity).put("" if record.active else "  over", "dim")
    figures = [
        f"{name} {format_number(value, '.4g')}"
        for name, value in (("limit", record.threshold), ("peak", record.peak))
    ]
    facts = [
        ("value", "   ".join([format_number(record.value, ".4g"), *figures, f"times {record.count}"])),
        ("first", _when(inputs, record.first)),
        ("last", _when(inputs, record.last)),
        ("state", state_words(record, inputs.now)),
        *_seen_by(record, inputs.now),
    ]
    lines = [row.line(width), EMPTY]
    for name, text in (*facts, *_advice(record)):
        lines += _wrapped(name, text, width)
    return [*lines, *_chart(inputs, record, width, height - len(lines) - 1)]


def _advice(record: AnomalyRecord) -> list[tuple[str, str]]:
    """Meaning, usual causes and steps to try."""
    found = [("hint", record.hint)] if record.hint else []
    guide = ANOMALY_GUIDES.get(kind_of_daemon(record.kind))
    if guide is not None:
        found += [("means", guide.meaning), ("usually", "; ".join(guide.causes))]
        found += [("" if i else "try", f"{i + 1}. {step}") for i, step in enumerate(guide.steps)]
    return found


def _wrapped(name: str, text: str, width: int) -> list[Line]:
    parts = textwrap.wrap(text, max(20, width - LABEL - 4)) or [""]
    names = [name, *[""] * (len(parts) - 1)]
    return [
        Row().put(f"   {name:<{LABEL}}", "dim").put(part).line(width)
        for name, part in zip(names, parts, strict=True)
    ]


def _chart(inputs: PanelInputs, record: AnomalyRecord, width: int, room: int) -> list[Line]:
    name = curve_of(record)
    if inputs.history(name) is None or room < MIN_CHART_LINES:
        return []
    return [EMPTY, *draw_charts(inputs, [name], width, room)]


def _when(inputs: PanelInputs, ts: int) -> str:
    return f"{format_clock(ts)}  ({format_duration(inputs.seconds_since(ts))} ago)"


def _seen_by(record: AnomalyRecord, now: int) -> list[tuple[str, str]]:
    """Authors and reasons of the acknowledgement and the mute."""
    found = []
    if record.acknowledged is not None:
        seen = record.acknowledged
        found.append(("seen by", f"{seen.by}, {format_clock(seen.ts)}  {seen.reason}".rstrip()))
    if record.is_muted(now):
        found.append(("muted by", f"{record.mute.by}  {record.mute.reason}".rstrip()))
    return found


def curve_of(record: AnomalyRecord) -> str:
    """The curve that shows what the record is about."""
    if record.env is not None and "drift" not in record.kind:
        return f"accuracy/{record.env}"
    if record.kind.endswith(LIMIT_SUFFIX):
        return f"ppo.{record.kind.removesuffix(LIMIT_SUFFIX)}"
    if record.kind == "health_drift":
        return f"health/{record.source}"
    return _CURVES.get(record.kind, f"drift/{record.source}")
