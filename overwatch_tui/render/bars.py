"""The bars at top and bottom: header, line of incidents, view bar, command row, keys."""

from __future__ import annotations

import re
from collections.abc import Sequence

from esper_overwatch.overwatch_tui import keys as key_table
from esper_overwatch.overwatch_tui.model.commands import STATE_STYLES, TrackedCommand
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.source.cursor import speed_name

from .event_text import event_text
from .format import format_clock, format_duration
from .incident_rows import current_incident
from .lines import Line, Row, cut_text, fade, width_of
from .link_text import ending_text, link_text
from .panel import PanelInputs, PanelTable
from .theme import severity_label

TWO_COLUMNS = 120
_WORD_STYLES = {"TRAINING": "ok", "COMPLETED": "ok", "FAILED": "critical", "DIED": "critical"}
_PART = re.compile(r"^(\d+) of (\d+)")
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


def incident_line(inputs: PanelInputs, width: int) -> Line:
    """NOW, WHY and NEXT: the worst incident, the change that came before it, the key of its guide.

    The link comes first: of a run that is not heard nothing is known.
    """
    link, incidents = inputs.link, inputs.state.incidents
    if link.state in ("stale", "lost", "ended"):
        return _trouble_with_link(inputs, width)
    unseen = incidents.unseen(inputs.now)
    known = unseen or [record for record in incidents.open() if record.data.severity != "info"]
    if not known:
        return _nothing_wrong(inputs, width)
    chosen = current_incident(inputs) if unseen or inputs.view.lists_incidents else None
    record = chosen if chosen is not None and chosen in known else known[0]
    row = _strip_row(inputs)
    style = {"critical": "alarm", "warning": "caution"}[record.data.severity]
    row.put(f" {severity_label(record.data.severity)} ", style if unseen else "dim").put(" ")
    next_ = _next_key(inputs, record)
    row.add(_incident_words(inputs, record, len(known) - 1, width - row.width - len(next_) - 3))
    line = row.right(next_, "key", width - 1).line(width)
    return line if link.is_fresh else fade(line)


def _incident_words(inputs: PanelInputs, record: IncidentRecord, more: int, room: int) -> Line:
    """What, where, since when, after what, how many others: as much as there is room for."""
    data = record.data
    age = format_duration(inputs.seconds_since(data.since))
    others = f"  +{more}" if more else ""
    after = " after " if room >= 90 else " < "
    suspect = data.suspect
    cause = suspect.rpartition(" by ")[0] or suspect
    scope = data.scope.partition(",")[0]
    choices = [
        (data.scope, f" {age}", suspect, others),
        (data.scope, f" {age}", cause, others),
        (scope, f" {age}", cause, others),
        (scope, "", cause, others),
        (_PART.sub(r"\1/\2", scope), "", cause, ""),
    ]
    words: Line = ()
    for where, since, why, rest in choices:
        row = Row().put(data.title, "bold").put(f": {where}").put(since, "dim")
        if why:
            row.put(after, "faint").put(why, "accent")
        words = tuple(row.put(rest, "dim").spans)
        if width_of(words) <= room:
            return words
    return Row().add(words).line(max(1, room))


def _strip_row(inputs: PanelInputs) -> Row:
    """Begin of the strip, which shows the present and says so while a past moment is shown."""
    is_past = inputs.view.is_frozen and not inputs.link.is_replay
    return Row().put(" now", "bold") if is_past else Row()


def _next_key(inputs: PanelInputs, record: IncidentRecord) -> str:
    """The key that leads on: to the guide, and where it is open to what it advises, or to its end."""
    view = inputs.view
    if view.name == "problems" and view.selected.get("incidents") == record.key:
        can_undo = record.data.undo and not view.read_only and not inputs.link.is_replay
        return "U undo" if can_undo else "a ack" if record.is_waiting else ""
    return "n guide" if record.is_waiting else "2 list"


def _nothing_wrong(inputs: PanelInputs, width: int) -> Line:
    """No incident waits: "ok" where the link says so too."""
    state, link = inputs.state, inputs.link
    if not state.is_measured:
        return Row().put(" -- ", "dim").put("nothing measured yet", "dim").line(width)
    row = _strip_row(inputs)
    if link.is_current:
        row.put(" ok ", "ok").put("no incident is open", "dim")
    else:
        row.put(" -- ", "dim").put("no incident was open", "dim")
    noted = state.incidents.open("info")
    if noted:
        row.put(f"  {inputs.glyphs.bar} noted: {noted[0].data.title}, {noted[0].data.scope}", "dim")
    if state.epoch is not None:
        age = format_duration(inputs.seconds_since(state.epoch_ts))
        last = f"  {inputs.glyphs.bar} last epoch {age} ago"
        row.put(last if row.width + len(last) < width else "", "faint")
    return row.line(width)


def _trouble_with_link(inputs: PanelInputs, width: int) -> Line:
    link = inputs.link
    style = "alarm" if link.severity == "critical" else "caution"
    row = Row().put(f" {link.label} ", style).put(" ")
    is_ending = bool(link.outcome) and width < TWO_COLUMNS
    row.put(ending_text(link) if is_ending else link_text(link), "bold")
    stopped = inputs.state.stopped
    if stopped is not None and stopped.exit_code:
        row.put(f"; exit {stopped.exit_code}: {stopped.error or stopped.reason}", "critical")
    waiting = len(inputs.state.incidents.unseen(inputs.now))
    return row.right(f"{waiting} unacked before" if waiting else "", "dim", width - 1).line(width)


def view_line(inputs: PanelInputs, width: int, panels: PanelTable, note: str, hidden: Sequence[str]) -> Line:
    """The views, and the panels of the chosen one that Tab leads to; the active view is in brackets.

    Args:
        note: the note of a panel that has no title of its own.
        hidden: names of the panels that have no place on the screen.
    """
    view = inputs.view
    row = Row()
    for one in panels.views:
        waiting = max(panels[name].num_waiting(inputs) for name in one.one[:1])
        text = f"{one.key} {one.title}" + (f"({waiting})" if waiting else "")
        if one is panels.view(view.name):
            row.put(f"[{text}]", "tab")
        else:
            row.put(f" {text} ", "warning" if waiting else "dim")
    right = [note] if note else []
    if hidden:
        right.append("Tab: " + " ".join(hidden))
    right.append(f"{inputs.axis.name} {view.rate:g} Hz")
    while len(right) > 1 and row.width + len("  ".join(right)) + 2 > width:
        right.pop(0)
    return row.right("  ".join(right), "dim", width - 1).line(width)


FIRST_LEGEND = "T11: TRAINING for 11 epochs   B.4: BLENDING, alpha 0.4   ? explains the rest"


def status_line(inputs: PanelInputs, width: int, *, has_log: bool) -> Line:
    """A message, else the newest command, and the newest event where no log shows it.

    Before the palette was ever used, one line about the shortest codes.
    """
    view = inputs.view
    row = Row("bar").put(" ")
    if view.message:
        return row.put(view.message, "key").line(width)
    command = inputs.state.commands.latest
    if view.is_new and inputs.state.num_envs and (command is None or command.by != "me"):
        return row.put(FIRST_LEGEND, "accent").line(width)
    if command is not None:
        row.add(command_words(inputs, command))
    if has_log:
        return row.line(width)
    room = width - row.width - 4
    newest = next((e for e in reversed(inputs.state.log) if e.tag not in ("CMD", "VIEW")), None)
    if newest is not None and room >= 24:
        text = f"{newest.source} {event_text(newest.data)}"
        row.to(width - min(len(text), room) - 1).put(cut_text(text, room), newest.severity or "dim")
    return row.line(width)


def command_words(inputs: PanelInputs, command: TrackedCommand) -> Line:
    """`cmd #3 escalate DEBUG 5 → ACK 38ms (3 ep left)`"""
    row = Row().put(f"cmd #{command.number} ", "dim").put(command.title, "bold")
    row.put(f" {inputs.glyphs.arrow} ", "dim").put(command.state, STATE_STYLES.get(command.state, "accent"))
    if command.rtt is not None:
        row.put(f" {command.rtt * 1000:.0f}ms", "dim")
    if (left := inputs.state.epochs_left(command)) is not None:
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
        elif name == "sort" and inputs.view.charts.names:
            text = "save"
        if row.width + len(key) + len(text) + 3 > width - len(end):
            break
        row.put(f" {key} ", "key").put(f"{text} ", "dim")
    row.put(f" {leave} ", "key").put("quit", "dim")
    if mark:
        row.right(mark, "dim", width - 1)
    return row.line(width)
