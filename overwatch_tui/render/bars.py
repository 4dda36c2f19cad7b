"""The bars at top and bottom: header, anomaly strip, view bar, command row, keys."""

from __future__ import annotations

from collections.abc import Sequence

from .. import keys as key_table
from ..anomalies import Record
from ..describe import number, span
from ..frame import Frame
from ..lines import Line, Row
from ..orders import OPEN, SEVERITY, Order
from ..view import VIEWS

NAMES = {
    "envs": ("Envs", "Main"), "anomalies": ("Anom", "Anomalies"), "drift": ("Drift", "Drift"),
    "policy": ("Policy", "Policy"), "seeds": ("Seeds", "Seeds"), "log": ("Log", "Log"),
    "commands": ("Cmd", "Commands"), "system": ("Sys", "System"),
}  # fmt: skip
"""Short and long name of each view."""

_BADGE = {None: "live", "warning": "caution", "critical": "alarm"}


def header(frame: Frame, width: int) -> Line:
    """Which run, is it alive, how far is it."""
    state, link = frame.state, frame.link
    row = Row("bar").put(" ")
    row.put("esper" if width < 120 else "esper overwatch", "title").put("  ")
    name = state.run.name if state.run else link.name
    row.put((name or "--")[: width // 5], "bold")
    if state.run is not None and width >= 140:
        row.put(f"  {state.run.task} {state.run.policy} {state.run.device}", "dim")
    row.put("  ")
    _badge(frame, row)
    for text, style in _facts(frame, width):
        if row.width + 2 + len(text) > width - 1:
            break
        row.put("  ").put(text, style)
    return row.line(width)


def _badge(frame: Frame, row: Row) -> None:
    link = frame.link
    style = _BADGE[link.severity] if link.state not in ("searching", "connecting", "ended") else "caution"
    row.put(f" {link.word} ", style)
    if link.replay_speed is not None:
        row.put(f" {frame.glyphs.times}{link.replay_speed:g}", "dim")
    elif link.age is not None:
        row.put(f" {span(link.age)}", "dim" if link.fresh else "critical")
    if frame.view.frozen:
        row.put("  ").put(f" FROZEN +{frame.view.arrived} ", "caution")


def _facts(frame: Frame, width: int) -> list[tuple[str, str]]:
    """What else the header says, the most important first."""
    state, link = frame.state, frame.link
    word_ = state.run_state or link.trainer
    facts: list[tuple[str, str]] = []
    if word_:
        facts.append((word_, {"TRAINING": "ok", "STOPPED": "critical"}.get(word_, "warning")))
    if link.beat_age is not None and link.beat_age > 10 and word_ == "TRAINING":
        facts.append((f"trainer silent {span(link.beat_age)}", "critical"))
    if state.ctx.round:
        of = f"/{state.rounds_asked}" if state.rounds_asked else ""
        episode = f"/{state.run.episode_epochs}" if state.run else ""
        long = width >= 100
        facts.append((f"{'round ' if long else 'r'}{state.ctx.round}{of}", "bold"))
        facts.append((f"{'epoch ' if long else 'e'}{state.epoch_ctx.epoch}{episode}", ""))
    if state.level_left is not None:
        facts.append((f"{state.ctx.level} {state.level_left}ep", "caution"))
    lost = sum(link.dropped.values())
    if link.gaps or lost or link.skipped:
        facts.append((f"gap {link.gaps} lost {lost + link.skipped}", "warning"))
    if link.bad:
        facts.append((f"bad {link.bad}", "warning"))
    if state.envs:
        facts.append((f"{state.envs} env", ""))
    if link.rate is not None:
        facts.append((f"{link.rate:.0f} ev/s", "dim"))
    if state.level_left is None and state.run is not None:
        facts.append((state.ctx.level, "dim"))
    return facts


def strip(frame: Frame, width: int) -> Line:
    """Is anything wrong, where, since when."""
    state, link = frame.state, frame.link
    if link.state in ("stale", "lost", "ended"):
        return _trouble_with_link(frame, width)
    waiting = state.anomalies.open_records(frame.now)
    critical, warning = state.anomalies.active_count("critical"), state.anomalies.active_count("warning")
    if not waiting and not critical and not warning:
        if not link.fresh or state.epoch is None:
            return Row().put(" -- ", "dim").put("nothing measured yet", "dim").line(width)
        since = frame.seconds_since(state.epoch_ts)
        return (
            Row().put(" ok ", "ok").put("no anomaly is active", "dim")
            .put(f"  {frame.glyphs.separator} last epoch {span(since)} ago", "faint").line(width)
        )  # fmt: skip
    row = Row()
    row.put(" !! " if critical else " ?? ", "alarm" if critical else "caution").put(" ")
    row.put(f"{critical} CRIT", "critical" if critical else "dim").put(" ")
    row.put(f"{warning} WARN", "warning" if warning else "dim").put(" ")
    row.put(f" {len(waiting)} unacked", "bold" if waiting else "dim")
    hint = "n a A m" if width < 160 else "n next  a ack  A all  m mute"
    for record in _current_first(frame, waiting or state.anomalies.ordered())[:3]:
        words = record_words(frame, record, value=True)
        needed = sum(len(text) for text, _ in words) + 3
        if row.width + needed > width - len(hint) - 3:
            words = record_words(frame, record, value=False)
            needed = sum(len(text) for text, _ in words) + 3
            if row.width + needed > width - len(hint) - 3:
                break
        row.put(f" {frame.glyphs.separator} ", "faint").add(words)
    return row.right(hint, "key", width - 1).line(width)


def _current_first(frame: Frame, records: list[Record]) -> list[Record]:
    """The one that `a` would acknowledge before the others."""
    current = current_anomaly(frame)
    return [r for r in records if r is current] + [r for r in records if r is not current]


def current_anomaly(frame: Frame) -> Record | None:
    """The selected record, or the worst of those that wait."""
    selected = frame.view.selected.get("anomalies")
    record = frame.state.anomalies.get(selected) if isinstance(selected, tuple) else None
    if record is not None:
        return record
    waiting = frame.state.anomalies.open_records(frame.now)
    return waiting[0] if waiting else None


def record_words(frame: Frame, record: Record, *, value: bool) -> Line:
    """`env07 norm_drift 1.34>0.50 ×12 2m04s`"""
    row = Row().put(record.source, "bold").put(" ")
    row.put(record.short_kind, record.severity if record.active else "dim")
    if value and record.value is not None:
        limit = "" if record.threshold is None else f"/{record.threshold:.3g}"
        row.put(f" {number(record.value, '.3g')}{limit}")
    if record.count > 1:
        row.put(f" {frame.glyphs.times}{record.count}", "dim")
    age = span(frame.seconds_since(record.first if record.active else record.last))
    return tuple(row.put(f" {age}" if record.active else f" over {age}", "dim").spans)


def _trouble_with_link(frame: Frame, width: int) -> Line:
    link = frame.link
    style = "alarm" if link.severity == "critical" else "caution"
    row = Row().put(f" {link.word} ", style).put(" ")
    row.put(link.said or f"no heartbeat for {span(link.age)}", "bold")
    stopped = frame.state.stopped
    if stopped is not None and stopped.exit_code:
        row.put(f"; exit {stopped.exit_code}: {stopped.error or stopped.reason}", "critical")
    return row.line(width)


def views(frame: Frame, width: int, note: str, hidden: Sequence[str]) -> Line:
    """The views and what is not on the screen; the active one is in brackets."""
    view = frame.view
    row = Row()
    unacked = len(frame.state.anomalies.open_records(frame.now))
    for i, name in enumerate(VIEWS):
        text = f"{i + 1} {NAMES[name][width >= 120]}"
        if name == "anomalies" and unacked:
            text += f"({unacked})"
        if name == view.name:
            row.put(f"[{text}]", "tab")
        else:
            row.put(f" {text} ", "warning" if name == "anomalies" and unacked else "dim")
    right = [note] if note else []
    if hidden:
        right.append("hidden: " + " ".join(hidden).lower())
    right.append(_clock(frame))
    while len(right) > 1 and row.width + len("  ".join(right)) + 2 > width:
        right.pop(0)
    return row.right("  ".join(right), "dim", width - 1).line(width)


def _clock(frame: Frame) -> str:
    view = frame.view
    return f"{frame.window_name} {view.rate:g} Hz"


def status(frame: Frame, width: int) -> Line:
    """What was said last: a message, else the newest command and the newest event."""
    view = frame.view
    row = Row("bar").put(" ")
    if view.typing is not None:
        return row.put(f"env: {view.typing}_", "key").put("  Enter", "dim").line(width)
    if view.message:
        return row.put(view.message, "key").line(width)
    order = frame.state.orders.latest
    if order is not None:
        row.add(order_words(frame, order))
    room = width - row.width - 4
    newest = next((e for e in reversed(frame.state.log) if e.tag not in ("CMD", "VIEW")), None)
    if newest is not None and room >= 24:
        text = f"{newest.source} {newest.text}"
        row.to(width - min(len(text), room) - 1).put(text[:room], newest.severity or "dim")
    return row.line(width)


def order_words(frame: Frame, order: Order) -> Line:
    """`cmd #3 escalate DEBUG 5 → ACK 38ms (3 ep left)`"""
    row = (
        Row()
        .put(f"cmd #{order.number} ", "dim")
        .put(order.title, "bold")
        .put(f" {frame.glyphs.arrow} ", "dim")
    )
    row.put(order.state, SEVERITY.get(order.state, "accent"))
    if order.rtt is not None:
        row.put(f" {order.rtt * 1000:.0f}ms", "dim")
    left = frame.state.level_left
    if order.state in OPEN and order.method == "telemetry.escalate" and left is not None:
        row.put(f" ({left} ep left)", "accent")
    elif order.detail:
        row.put(f" {order.detail}", "dim")
    if order.by != "me":
        row.put(f" by {order.by}", "dim")
    return tuple(row.spans)


def keys(frame: Frame, width: int) -> Line:
    """The keys that matter, as many as fit."""
    row = Row()
    end = " q quit"
    for key, name in key_table.hints(read_only=frame.view.read_only):
        text = name
        if name == "pause" and frame.state.run_state == "PAUSED":
            text = "resume"
        if row.width + len(key) + len(text) + 3 > width - len(end):
            break
        row.put(f" {key} ", "key").put(f"{text} ", "dim")
    row.put(" q ", "key").put("quit", "dim")
    if frame.view.read_only:
        row.right("read-only", "dim", width - 1)
    return row.line(width)
