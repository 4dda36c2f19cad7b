"""What is wrong or was: the open ones first, then the acknowledged."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..anomalies import Record
from ..describe import number, span
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from ..theme import word
from ..widgets.plot import Series, chart
from .env import clock

DETAIL_LINES = 20
"""Lines left under the list that are worth the selected record's curve."""


def title(frame: Frame) -> str:
    return f"ANOMALIES {len(frame.state.anomalies.open_records(frame.now))} unacked"


def note(frame: Frame) -> str:
    return "a ack  m mute"


def keys(frame: Frame) -> Sequence[Hashable]:
    return [record.key for record in frame.state.anomalies.ordered()]


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 2, min(8, max(4, len(frame.state.anomalies) + 1))


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """One line each; beneath them the selected one's hint, or all of it where there is room."""
    records = frame.state.anomalies.ordered()
    if not records:
        fresh = frame.link.fresh and frame.state.epoch is not None
        text = "none since we joined" if fresh else "nothing measured yet"
        return [Row().put(f" {text}", "ok" if fresh else "dim").line(width)]
    if frame.view.name == "anomalies" and height - len(records) >= DETAIL_LINES:
        listed = _list(frame, records, width, len(records))
        return [*listed, EMPTY, *detail(frame, width, height - len(listed) - 1)]
    return _list(frame, records, width, height)


def _list(frame: Frame, records: list[Record], width: int, height: int) -> list[Line]:
    order = [record.key for record in records]
    hint = height >= 6 and frame.view.name != "anomalies"
    start, stop = frame.view.visible("anomalies", order, height - hint)
    at = frame.view.index("anomalies", order)
    lines = [_line(frame, records[i], width, selected=i == at) for i in range(start, stop)]
    if hint and records[at].hint:
        lines += [EMPTY] * (height - len(lines) - 1)
        lines.append(Row().put(f" {frame.glyphs.arrow} {records[at].hint}", "accent").line(width))
    return lines


def _line(frame: Frame, record: Record, width: int, *, selected: bool) -> Line:
    over = not record.active
    style = record.severity if record.waiting else "dim"
    row = Row().put(frame.glyphs.cursor if selected else " ", "focus")
    row.put("!" if record.waiting else " ", style)
    row.put("over" if over else word(record.severity), style, 5)
    wide = width >= 70
    row.put(record.source, "bold" if record.waiting else "", 17 if wide else None).put(" ")
    value = number(record.value, ".3g")
    tail = [span(frame.seconds_since(record.first if record.active else record.last))]
    if record.count > 1:
        tail.insert(0, f"{frame.glyphs.times}{record.count}")
    if record.muted(frame.now):
        tail.insert(0, "muted")
    if record.acked:
        tail.insert(0, "acked")
    if wide:
        row.put(record.kind, style, 22).put(value, style, 8, ">")
        row.put(f" limit {number(record.threshold, '.3g')}", "dim", 13)
        if width >= 110:
            row.put(f"peak {number(record.peak, '.3g')}", "dim", 13).put(
                f"since {clock(record.first)} ", "dim"
            )
    else:
        row.put(record.short_kind, style).put(f" {value}", style)
    text = " ".join(tail)
    room = width - 1 - len(text)
    if row.width > room - 1:
        row = Row().add(row.line(max(1, room - 1)))
    line = row.to(room).put(text, "dim").line(width)
    return restyle(line, "select") if selected else line


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """The selected record in full, with the curve of its signal where we have one."""
    records = frame.state.anomalies.ordered()
    if not records:
        return body(frame, width, height)
    record = records[frame.view.index("anomalies", [r.key for r in records])]
    row = Row().put(f" {record.source} ", "title").put(record.kind, "bold").put("  ")
    row.put(word(record.severity), record.severity).put("" if record.active else "  over", "dim")
    lines = [row.line(width), EMPTY]
    facts = (
        ("value", number(record.value, ".4g")), ("limit", number(record.threshold, ".4g")),
        ("peak", number(record.peak, ".4g")), ("times", str(record.count)),
        ("first", f"{clock(record.first)}  ({span(frame.seconds_since(record.first))} ago)"),
        ("last word", f"{clock(record.last)}  ({span(frame.seconds_since(record.last))} ago)"),
        ("state", _state_words(record, frame.now)), ("what to do", record.hint or "--"),
    )  # fmt: skip
    lines += [Row().put(f"   {name:<11}", "dim").put(value).line(width) for name, value in facts]
    name = _signal(record)
    room = height - len(lines) - 2
    if frame.history(name) is not None and room >= 4:
        limit = [(record.threshold, record.severity)] if record.threshold is not None else []
        lines += [EMPTY, Row().put(f"   {name}, {frame.window_name}", "dim").line(width)]
        lines += chart(
            [Series(name, frame.history(name))], width, room, now=frame.now, window=frame.window,
            glyphs=frame.glyphs, limits=limit, floor=0.0,
        )  # fmt: skip
    return lines


def _state_words(record: Record, now: int) -> str:
    words = [
        "active" if record.active else "over",
        "acknowledged" if record.acked else "not acknowledged (a)",
    ]
    if record.muted(now):
        words.append(f"muted for {span((record.muted_until - now) / 1e6)} more (m)")
    return ", ".join(words)


def _signal(record: Record) -> str:
    """The history that shows what the record is about."""
    if record.env is not None and "drift" not in record.kind:
        return f"accuracy/{record.env}"
    policy = {
        "kl_spike": "ppo.approx_kl", "clip_fraction": "ppo.clip_fraction", "entropy_collapse": "ppo.entropy",
        "value_collapse": "ppo.explained_variance", "ratio_explosion": "ppo.ratio_max",
        "ratio_collapse": "ppo.ratio_min", "lstm_saturated": "ppo.lstm_h_rms", "slow_update": "ppo.seconds",
        "memory": "memory",
    }  # fmt: skip
    return policy.get(record.kind, f"drift/{record.source}")


PANEL = Panel(name="anomalies", title=title, body=body, needs=needs, note=note, keys=keys, detail=detail)
