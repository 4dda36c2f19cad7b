"""Gradient drift of every source: policy and its heads, the critic, and the envs that moved most."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..anomalies import RANK
from ..describe import number
from ..envrows import compact
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from ..theme import letter, word
from ..widgets.plot import Series, chart

_HEAD = "policy."


def title(frame: Frame) -> str:
    return "GRADIENT DRIFT"


def note(frame: Frame) -> str:
    return "" if frame.view.name == "drift" else frame.window_name


def keys(frame: Frame) -> Sequence[Hashable]:
    """Policy, heads and critic in the order of the event; then the envs and seeds, the worst first."""
    drift = frame.state.drift
    fixed = sorted((s for s in drift if not s.startswith("env")), key=lambda s: s == "critic")
    moving = [s for s, row in drift.items() if s.startswith("env") and row.norm_drift is not None]
    return fixed + sorted(
        moving, key=lambda s: (-RANK.get(_severity(frame, s) or "", -1), -_magnitude(frame, s), s)
    )


def _magnitude(frame: Frame, source: str) -> float:
    value = frame.state.drift_of(source)
    if value is None:
        return -1.0
    return value if value == value else 1e300


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 4, min(14, len(keys(frame)) + 3)


def _severity(frame: Frame, source: str) -> str | None:
    """The worse of norm and health drift, as the daemon's detector sees it."""
    found = [frame.state.judged(source, kind) for kind in ("norm_drift", "health_drift")]
    return max(found, key=lambda s: RANK.get(s or "", -1))


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """A header, one line per source, the rule at the bottom."""
    order = keys(frame)
    if not order:
        return [Row().put(" no drift measured yet: the averages need 20 samples first", "dim").line(width)]
    footer = _footer(frame, width) if height >= 8 else []
    wide = width >= 70
    lines = [_header(wide, width)]
    start, stop = frame.view.visible("drift", order, height - 1 - len(footer))
    chosen = frame.view.index("drift", order) if frame.view.focus == "drift" else -1
    for i in range(start, stop):
        lines.append(_line(frame, str(order[i]), width, wide=wide, selected=i == chosen))
    return [*lines, *[EMPTY] * (height - len(lines) - len(footer)), *footer]


def _header(wide: bool, width: int) -> Line:
    if wide:
        text = " SOURCE             NORM    EMA NDRIFT  HEALTH   EMA HDRIFT"
    else:
        text = " SOURCE       NORM NDRIFT HDRIFT"
    return Row().put(text, "dim").line(width)


def _line(frame: Frame, source: str, width: int, *, wide: bool, selected: bool) -> Line:
    drift = frame.state.drift[source]
    norm, health = drift.norm_drift, drift.health_drift
    norm_severity = frame.state.judged(source, "norm_drift")
    health_severity = frame.state.judged(source, "health_drift")
    row = Row().put(frame.glyphs.cursor if selected else " ", "focus")
    inner = source.startswith(_HEAD)
    name = "  " + source[len(_HEAD) :].replace("alpha_", "alpha_" if wide else "a_") if inner else source
    row.put(name, "" if inner else "bold", 15 if wide else 11)
    row.put(compact(drift.norm, 6), "", 8 if wide else 7, ">")
    if wide:
        row.put(compact(drift.norm_ema, 6), "dim", 7, ">")
    row.put(compact(norm, 6), norm_severity or "dim", 7 if wide else 6, ">").put(
        letter(norm_severity), norm_severity or ""
    )
    if wide:
        row.put(number(drift.health), "", 7, ">")
        row.put(number(drift.health_ema), "dim", 6, ">")
    row.put(compact(health, 6), health_severity or "dim", 6, ">").put(
        letter(health_severity), health_severity or ""
    )
    severity = _severity(frame, source)
    flag = 6 if wide else 0
    room = width - row.width - 2 - flag
    if room >= 5:
        curve = frame.spark(f"drift/{source}", room, low=0.0, high=_top(frame))
        row.put(" ").put(curve, severity or "chart").put(" ")
    if wide:
        row.put(word(severity) if severity else "", severity or "dim", 5)
    line = row.line(width)
    return restyle(line, "select") if selected else line


def _top(frame: Frame) -> float:
    """Upper end of the curves: one scale for all, so that quiet sources look quiet."""
    limit = frame.state.thresholds.get("norm_drift")
    return limit.critical if limit is not None else 1.0


def _footer(frame: Frame, width: int) -> list[Line]:
    """The limits, and the LSTM where it was measured."""
    limit = frame.state.thresholds.get("norm_drift")
    row = Row()
    if limit is not None:
        row.put(f" limits from {limit.warning:g}/{limit.critical:g}, {limit.raise_after} in a row", "dim")
    if width >= 100:
        row.put(", higher where drift is usual; drift = |x-ema| / max(ema, 1e-6)", "faint")
    lines = [row.line(width)]
    ppo = frame.state.ppo
    if ppo is not None and ppo.lstm_h_rms is not None:
        lines.insert(0, _lstm(frame, width))
    return lines


def _lstm(frame: Frame, width: int) -> Line:
    ppo = frame.state.ppo
    assert ppo is not None
    row = Row().put(" lstm rms", "dim")
    for name, value in (("h", ppo.lstm_h_rms), ("c", ppo.lstm_c_rms)):
        severity = frame.state.severity("lstm_rms", value) or frame.state.severity("lstm_rms_low", value)
        row.put(f" {name} ", "dim").put(compact(value, 6), severity or "").put(
            f" {word(severity)}", severity or "ok"
        )
    return row.line(width)


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """Norm and drift of the selected source over time."""
    order = keys(frame)
    if not order:
        return body(frame, width, height)
    source = str(order[frame.view.index("drift", order)])
    lines = [_header(True, width), _line(frame, source, width, wide=width >= 70, selected=False), EMPTY]
    half = (height - len(lines) - 2) // 2
    record = frame.state.anomalies.get((source, "norm_drift"))
    limits = [(record.threshold, record.severity)] if record and record.threshold is not None else []
    for text, name, style, marks in (
        ("norm drift", f"drift/{source}", "chart", limits), ("gradient norm", f"norm/{source}", "chart2", []),
    ):  # fmt: skip
        if half >= 4 and frame.history(name) is not None:
            lines.append(Row().put(f" {text} of {source}, {frame.window_name}", "dim").line(width))
            lines += chart(
                [Series(text, frame.history(name), style)], width, half - 1, now=frame.now,
                window=frame.window, glyphs=frame.glyphs, limits=marks, floor=0.0,
            )  # fmt: skip
            lines.append(EMPTY)
    return lines


PANEL = Panel(name="drift", title=title, body=body, needs=needs, note=note, keys=keys, detail=detail)
