"""The bars at top and bottom: header, anomaly strip, view bar, command row, keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from esper_overwatch.overwatch_tui import keys as key_table
from esper_overwatch.overwatch_tui.model.anomalies import AnomalyRecord
from esper_overwatch.overwatch_tui.model.commands import OPEN_STATES, STATE_STYLES, TrackedCommand
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.source.cursor import speed_name

from .anomaly_rows import current_anomaly
from .event_text import event_text
from .format import format_clock, format_duration, format_number
from .lines import Line, Row, cut_text, fade, width_of
from .link_text import ending_text, link_text
from .panel import PanelInputs, PanelTable

SILENT_SECONDS, SILENT_EPOCHS = 10.0, 3
"""A trainer is silent after this time, and after this number of its epochs."""
TWO_COLUMNS = 120
_WORD_STYLES = {"TRAINING": "ok", "COMPLETED": "ok", "FAILED": "critical", "DIED": "critical"}
_BADGE = {None: "live", "warning": "caution", "critical": "alarm"}


def header_line(inputs: PanelInputs, width: int) -> Line:
    """Run, state of the link, progress."""
    state, link = inputs.state, inputs.link
    row = Row("bar").put(" ")
    row.put("esper" if width < 120 else "esper overwatch", "title").put("  ")
    name = state.run.name if state.run else link.name
    row.put(cut_text(name or "--", width // 5), "bold")
    if state.run is not None and width >= 140:
        run = state.run
        about = run.tags if state.is_published else [run.task, run.policy, run.device]
        row.put(f"  {' '.join(about)}", "dim")
    row.put("  ")
    _badge(inputs, row)
    for text, style in _facts(inputs, width):
        if row.width + 2 + len(text) > width - 1:
            break
        row.put("  ").put(text, style)
    return row.line(width)


def _badge(inputs: PanelInputs, row: Row) -> None:
    link = inputs.link
    style = _BADGE[link.severity] if link.state not in ("searching", "connecting", "ended") else "caution"
    row.put(f" {link.label} ", style)
    if link.replay_speed is not None:
        row.put(f" {inputs.glyphs.times}{speed_name(link.replay_speed)}", "dim")
    elif link.age_seconds is not None:
        row.put(f" {format_duration(link.age_seconds)}", "dim" if link.is_current else "critical")
    view = inputs.view
    if view.is_frozen:
        after = f" +{view.num_arrived}" if view.num_arrived or not link.is_replay else ""
        row.put("  ").put(f" FROZEN {format_clock(inputs.now)}{after} ", "caution")
    elif link.is_replay:
        row.put(f" {format_clock(inputs.now)}", "dim")
    if view.seeking:
        row.put(" ").put(f" SEEKING {view.seeking} ", "caution")


def _facts(inputs: PanelInputs, width: int) -> list[tuple[str, str]]:
    """Further (text, style) pairs of the header, the most important first."""
    state, link = inputs.state, inputs.link
    word_ = inputs.run_word
    facts: list[tuple[str, str]] = []
    if word_ and not link.opening:
        style = _WORD_STYLES.get(word_, "warning")
        by = f" BY {link.stopped_by}" if link.stopped_by else ""
        facts.append((word_ + by, style if link.is_fresh or link.outcome else "dim"))
    lease = state.commands.lease
    if lease is not None and lease.until > inputs.now and link.is_fresh and not link.is_replay:
        left = format_duration((lease.until - inputs.now) / SECOND)
        is_own = lease.fingerprint == link.lease
        facts.append(
            (f"LEASE {'' if is_own else f'{lease.holder} '}{left}", "accent" if is_own else "caution")
        )
    if silent_trainer(inputs):
        facts.append((f"trainer silent {format_duration(link.trainer_age_seconds)}", "critical"))
    if state.ctx.round:
        of = f"/{state.rounds_planned}" if state.rounds_planned else ""
        episode = f"/{state.run.episode_epochs}" if state.run else ""
        long = width >= 100
        facts.append((f"{'round ' if long else 'r'}{state.ctx.round}{of}", "bold"))
        facts.append((f"{'epoch ' if long else 'e'}{inputs.epoch}{episode}", ""))
        if inputs.view.is_frozen:
            facts = facts[-2:] + facts[:-2]
    if state.metrics.step is not None:
        facts.append((f"step {state.metrics.step}", "bold"))
    if state.escalation_left() is not None:
        facts.append((f"{state.escalations.level} {state.escalation_left()}ep", "caution"))
    lost = sum(link.dropped.values())
    if link.gaps or lost or link.skipped:
        facts.append((f"gap {link.gaps} lost {lost + link.skipped}", "warning"))
    if link.bad:
        facts.append((f"bad {link.bad}", "warning"))
    if state.num_envs:
        facts.append((f"{state.num_envs} env", ""))
    if link.events_per_second is not None:
        facts.append((f"{link.events_per_second:.0f} ev/s", "dim"))
    if state.escalation_left() is None and state.run is not None and not state.is_published:
        facts.append((state.ctx.level, "dim"))
    return facts


def silent_trainer(inputs: PanelInputs) -> bool:
    """True if the trainer's loop has been silent for three of its epochs, and for 10 s at least."""
    age, epoch = inputs.link.trainer_age_seconds, inputs.state.epoch
    usual = 0.0 if epoch is None else epoch.seconds
    return (
        age is not None and inputs.run_word == "TRAINING" and age > max(SILENT_SECONDS, SILENT_EPOCHS * usual)
    )


def anomaly_line(inputs: PanelInputs, width: int) -> Line:
    """NOW, WHY and NEXT: what is wrong, since when and why, which key helps; the link first."""
    link, anomalies = inputs.link, inputs.state.anomalies
    if link.state in ("stale", "lost", "ended"):
        return _trouble_with_link(inputs, width)
    waiting = anomalies.open_records(inputs.now)
    critical, warning = anomalies.active_count("critical"), anomalies.active_count("warning")
    if not waiting and not critical and not warning:
        return _nothing_wrong(inputs, width)
    row = _strip_row(inputs)
    row.put(" !! " if critical else " ?? ", "alarm" if critical else "caution").put(" ")
    row.put(f"{critical} CRIT", "critical" if critical else "dim").put(" ")
    row.put(f"{warning} WARN", "warning" if warning else "dim").put(" ")
    row.put(f" {len(waiting)} unacked", "bold" if waiting else "dim")
    records = _current_first(inputs, waiting or anomalies.ordered())
    keys = _next_keys(inputs, records[0], width)
    for i, record in enumerate(records[:3]):
        words = record_words(inputs, record, value=True)
        needed = width_of(words) + 3
        if row.width + needed > width - len(keys) - 3:
            words = record_words(inputs, record, value=False)
            needed = width_of(words) + 3
            if row.width + needed > width - len(keys) - 3:
                break
        row.put(f" {inputs.glyphs.separator} ", "faint").add(words)
        if i == 0 and record.hint and row.width + len(record.hint) + 4 <= width - len(keys) - 3:
            row.put(f" {inputs.glyphs.arrow} ", "faint").put(record.hint, "accent")
    line = row.right(keys, "key", width - 1).line(width)
    return line if link.is_fresh else fade(line)


def _strip_row(inputs: PanelInputs) -> Row:
    """Begin of the strip, which shows the present and says so while a past moment is shown."""
    is_past = inputs.view.is_frozen and not inputs.link.is_replay
    return Row().put(" now", "bold") if is_past else Row()


def _next_keys(inputs: PanelInputs, record: AnomalyRecord, width: int) -> str:
    """The keys that help with a record: look at it, then acknowledge it."""
    long = width >= 120
    if inputs.view.selected.get("anomalies") != record.key and record.is_waiting:
        return "n look  a ack  m mute" if long else "n look"
    closer = record.env is not None and not inputs.view.read_only and not inputs.link.is_replay
    keys = ["Enter env", "T closer"] if closer else ["2 list"]
    if record.is_waiting:
        keys.append("a ack")
    return "  ".join(keys) if long else keys[-1]


def _nothing_wrong(inputs: PanelInputs, width: int) -> Line:
    """The store holds nothing: "ok" where the link and the trainer's loop say so too."""
    state, link = inputs.state, inputs.link
    if not state.is_measured:
        return Row().put(" -- ", "dim").put("nothing measured yet", "dim").line(width)
    row = _strip_row(inputs)
    if silent_trainer(inputs):
        row.put(" !! ", "alarm").put(" trainer silent", "critical")
        row.put(f" for {format_duration(link.trainer_age_seconds)}", "bold")
        row.put(f" {inputs.glyphs.arrow} ", "faint").put("esper-daemon doctor " + (link.name or ""), "accent")
    elif link.is_current:
        row.put(" ok ", "ok").put("no anomaly is active", "dim")
    else:
        row.put(" -- ", "dim").put("no anomaly was active", "dim")
    if state.epoch is not None:
        age = format_duration(inputs.seconds_since(state.epoch_ts))
        row.put(f"  {inputs.glyphs.separator} last epoch {age} ago", "faint")
    return row.line(width)


def _current_first(inputs: PanelInputs, records: list[AnomalyRecord]) -> list[AnomalyRecord]:
    """Records with the one first that `a` would acknowledge."""
    current = current_anomaly(inputs)
    return [r for r in records if r is current] + [r for r in records if r is not current]


def record_words(inputs: PanelInputs, record: AnomalyRecord, *, value: bool) -> Line:
    """`env07 norm_drift 1.34>0.50 ×12 2m04s`"""
    row = Row().put(record.source, "bold").put(" ")
    row.put(record.short_kind, record.severity if record.active else "dim")
    if value and record.value is not None:
        no_limit = record.threshold is None or not isfinite(record.value)
        limit = "" if no_limit else f"/{record.threshold:.3g}"
        row.put(f" {format_number(record.value, '.3g')}{limit}")
    if record.count > 1:
        row.put(f" {inputs.glyphs.times}{record.count}", "dim")
    age = format_duration(inputs.seconds_since(record.first if record.active else record.last))
    return tuple(row.put(f" {age}" if record.active else f" over {age}", "dim").spans)


def _trouble_with_link(inputs: PanelInputs, width: int) -> Line:
    link = inputs.link
    style = "alarm" if link.severity == "critical" else "caution"
    row = Row().put(f" {link.label} ", style).put(" ")
    is_ending = bool(link.outcome) and width < TWO_COLUMNS
    row.put(ending_text(link) if is_ending else link_text(link), "bold")
    stopped = inputs.state.stopped
    if stopped is not None and stopped.exit_code:
        row.put(f"; exit {stopped.exit_code}: {stopped.error or stopped.reason}", "critical")
    waiting = len(inputs.state.anomalies.open_records(inputs.now))
    return row.right(f"{waiting} unacked before" if waiting else "", "dim", width - 1).line(width)


def view_line(inputs: PanelInputs, width: int, panels: PanelTable, note: str, hidden: Sequence[str]) -> Line:
    """The views and the titles of `hidden` panels; the active view is in brackets.

    Args:
        note: the note of a panel that has no title of its own.
    """
    view = inputs.view
    row = Row()
    shown = panels.view_of(view.name)
    for panel in panels.views:
        waiting = panel.renderer.num_waiting(inputs)
        name = panel.tab[width >= 120]
        if not name and panel.name != shown:
            continue
        text = f"{panel.key} {name or panel.tab[1]}" + (f"({waiting})" if waiting else "")
        if panel.name == shown:
            row.put(f"[{text}]", "tab")
        else:
            row.put(f" {text} ", "warning" if waiting else "dim")
    right = [note] if note else []
    if hidden:
        right.append("hidden: " + " ".join(hidden).lower())
    right.append(f"{inputs.window_name} {view.rate:g} Hz")
    while len(right) > 1 and row.width + len("  ".join(right)) + 2 > width:
        right.pop(0)
    return row.right("  ".join(right), "dim", width - 1).line(width)


def status_line(inputs: PanelInputs, width: int) -> Line:
    """A message, else the newest command and the newest event."""
    view = inputs.view
    row = Row("bar").put(" ")
    if view.typing is not None:
        return row.put(f"env: {view.typing}_", "key").put("  Enter", "dim").line(width)
    if view.message:
        return row.put(view.message, "key").line(width)
    command = inputs.state.commands.latest
    if command is not None:
        row.add(command_words(inputs, command))
    room = width - row.width - 4
    newest = next((e for e in reversed(inputs.state.log) if e.tag not in ("CMD", "VIEW")), None)
    if newest is not None and room >= 24:
        text = f"{newest.source} {event_text(newest.data)}"
        row.to(width - min(len(text), room) - 1).put(cut_text(text, room), newest.severity or "dim")
    return row.line(width)


def command_words(inputs: PanelInputs, command: TrackedCommand) -> Line:
    """`cmd #3 escalate DEBUG 5 → ACK 38ms (3 ep left)`"""
    row = (
        Row()
        .put(f"cmd #{command.number} ", "dim")
        .put(command.title, "bold")
        .put(f" {inputs.glyphs.arrow} ", "dim")
    )
    row.put(command.state, STATE_STYLES.get(command.state, "accent"))
    if command.rtt is not None:
        row.put(f" {command.rtt * 1000:.0f}ms", "dim")
    left = inputs.state.escalation_left(command.id)
    if command.state in OPEN_STATES and command.method == "telemetry.escalate" and left is not None:
        row.put(f" ({left} ep left)", "accent")
    elif command.detail:
        row.put(f" {command.detail}", "dim")
    if command.by != "me":
        row.put(f" by {command.by}", "dim")
    return tuple(row.spans)


def key_line(inputs: PanelInputs, width: int) -> Line:
    """The keys that matter, as many as fit."""
    row = Row()
    leave = key_table.shown_key(inputs.view.keys, "leave")
    mark = "read-only" if inputs.view.read_only else ""
    end = f" {leave} quit  {mark}" if mark else f" {leave} quit"
    missing = inputs.state.missing_commands
    for key, name in key_table.footer_hints(
        inputs.view.keys, read_only=inputs.view.read_only, missing=missing
    ):
        text = name
        if name == "pause" and inputs.state.run_state == "PAUSED":
            text = "resume"
        if row.width + len(key) + len(text) + 3 > width - len(end):
            break
        row.put(f" {key} ", "key").put(f"{text} ", "dim")
    row.put(f" {leave} ", "key").put("quit", "dim")
    if mark:
        row.right(mark, "dim", width - 1)
    return row.line(width)
