"""Gradient drift of every source: policy and its heads, the critic, and the envs that moved most."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.chart_page import draw_charts
from esper_overwatch.overwatch_tui.render.format import format_compact, format_number, rank_of
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import severity_label, severity_mark
from esper_overwatch.protocol.messages.events import PPOUpdate
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

_HEAD = "policy."
MIN_ROWS_ABOVE_CHARTS = 16
MIN_CHART_LINES = 8
"""Lines left under the list that are worth charts."""


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    """Policy, heads and critic in the order of the event; then the envs and seeds, the worst first."""
    return inputs.keep("drift keys", lambda: _sort_sources(inputs))


def _sort_sources(inputs: PanelInputs) -> list[str]:
    drift = inputs.state.drift
    fixed = sorted((s for s in drift if not s.startswith("env")), key=lambda s: s == "critic")
    moving = [s for s, row in drift.items() if s.startswith("env") and row.norm_drift is not None]
    return fixed + sorted(
        moving, key=lambda s: (-SEVERITY_RANK[_severity(inputs, s)], -rank_of(drift[s].norm_drift), s)
    )


def _severity(inputs: PanelInputs, source: str) -> str | None:
    """The worse of norm and health drift, as the daemon's detector sees it."""
    found = [inputs.state.detector_severity(source, kind) for kind in ("norm_drift", "health_drift")]
    return max(found, key=lambda s: SEVERITY_RANK[s])


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A header, one line per source, the limits; where there is room the charts of the selected one."""
    order = keys(inputs)
    room = height - min(len(order) + 4, max(MIN_ROWS_ABOVE_CHARTS, height // 2))
    if room >= MIN_CHART_LINES and charts(inputs):
        listed = _list(inputs, order, width, height - room)
        return listed._replace(lines=[*listed.lines, *draw_charts(inputs, charts(inputs)[:2], width, room)])
    return _list(inputs, order, width, height)


def _list(inputs: PanelInputs, order: Sequence[Hashable], width: int, height: int) -> Drawn:
    if not order:
        text = " no drift measured yet: the averages need 20 samples first"
        return Drawn([Row().put(text, "dim").line(width)])
    footer = _footer(inputs, width) if height >= 8 else []
    titles = " SOURCE             NORM   MEAN  DRIFT  HEALTH  MEAN  DRIFT"
    lines = [Row().put(titles, "dim").line(width)]
    scroll = inputs.view.visible_rows("drift", order, height - 1 - len(footer), top=len(lines))
    chosen = inputs.view.selected_index("drift", order) if inputs.focus in ("drift", "") else -1
    for i, source in enumerate(order[scroll.rows], scroll.start):
        lines.append(_line(inputs, str(source), width, selected=i == chosen))
    return Drawn([*lines, *[EMPTY] * (height - len(lines) - len(footer)), *footer], scroll)


def _line(inputs: PanelInputs, source: str, width: int, *, selected: bool) -> Line:
    drift = inputs.state.drift[source]
    norm, health = drift.norm_drift, drift.health_drift
    norm_severity = inputs.state.detector_severity(source, "norm_drift")
    health_severity = inputs.state.detector_severity(source, "health_drift")
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    inner = source.startswith(_HEAD)
    row.put("  " + source[len(_HEAD) :] if inner else source, "" if inner else "bold", 15)
    row.put(format_compact(drift.norm, 6), "", 8, ">").put(format_compact(drift.norm_ema, 6), "dim", 7, ">")
    row.put(format_compact(norm, 6), norm_severity or "dim", 7, ">")
    row.put(severity_mark(norm_severity), norm_severity or "")
    row.put(format_number(drift.health), "", 7, ">").put(format_number(drift.health_ema), "dim", 6, ">")
    row.put(format_compact(health, 6), health_severity or "dim", 6, ">")
    row.put(severity_mark(health_severity), health_severity or "")
    severity = _severity(inputs, source)
    room = width - row.width - 8
    if room >= 5:
        highest = max(inputs.state.drift_limits.values(), default=1.0)  # one scale: small drift looks small
        curve = inputs.sparkline(f"drift/{source}", room, low=0.0, high=highest)
        row.put(" ").put(curve, severity or "chart").put(" ")
    row.put(severity_label(severity) if severity else "", severity or "dim")
    return row.line(width, selected=selected)


def _footer(inputs: PanelInputs, width: int) -> list[Line]:
    """The limits, and the LSTM where it was measured."""
    limits = {name: limit for name, limit in inputs.state.drift_limits.items() if "norm" in name}
    row = Row().put(" noted from ", "dim")
    words = [f"{name.partition('.')[0]} {limit:.3g}" for name, limit in limits.items()]
    row.put(", ".join(words) or "-- (what is usual is not known yet)", "dim")
    if width >= 100:
        row.put("; drift = |x-ema| / max(ema, 1e-6)", "faint")
    lines = [row.line(width)]
    ppo = inputs.state.ppo
    if ppo is not None and ppo.lstm_h_rms is not None:
        lines.insert(0, _lstm(inputs, ppo, width))
    return lines


def _lstm(inputs: PanelInputs, ppo: PPOUpdate, width: int) -> Line:
    row = Row().put(" lstm rms", "dim")
    for name, value in (("h", ppo.lstm_h_rms), ("c", ppo.lstm_c_rms)):
        kinds = ("lstm_saturated", "lstm_dead")
        severity = next((s for kind in kinds if (s := inputs.state.detector_severity("policy", kind))), None)
        row.put(f" {name} ", "dim").put(format_compact(value, 6), severity or "")
        row.put(f" {severity_label(severity)}", severity or "ok")
    return row.line(width)


def charts(inputs: PanelInputs) -> Sequence[str]:
    """Drift, norm and health of the selected source, as far as they are kept."""
    order = keys(inputs)
    if not order:
        return ()
    source = order[inputs.view.selected_index("drift", order)]
    names = [f"{kind}/{source}" for kind in ("drift", "norm", "health")]
    return [name for name in names if inputs.history(name) is not None]


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    found: list[dict[str, FieldValue]] = []
    for source in map(str, keys(inputs)):
        row = inputs.state.drift[source]
        found.append({"source": source, **row._asdict(), "sev": severity_label(_severity(inputs, source))})
    return found


RENDERER = Renderer(
    title=lambda _: "GRADIENT DRIFT",
    body=body,
    needs=lambda inputs, _: (4, min(14, len(keys(inputs)) + 3)),
    note=lambda inputs: inputs.window_name,
    keys=keys,
    charts=charts,
    records=records,
)
