"""The list of runs as lines: a row for each, and beneath it what is known of the selected one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.source.compared_runs import LETTERS
from esper_overwatch.overwatch_tui.source.run_list import ListedRun, MachineRuns, RunList
from esper_overwatch.protocol.journal.overview import RunOverview

from .comparison_table import RUN_STYLES
from .format import NOT_MEASURED, format_count, format_number, format_percent
from .lines import EMPTY, Line, Row, cut_text, sign_cuts
from .theme import Glyphs
from .view_state import ViewState

STATE_STYLES = {
    "TRAINING": "ok",
    "LIVE": "ok",
    "PAUSED": "warning",
    "FAILED": "critical",
    "DIED": "critical",
    "COMPLETED": "info",
    "STOPPED": "dim",
}
BAD_STATES = ("FAILED", "DIED")
KEYS = (
    ("j k", "move"),
    ("Enter", "open"),
    ("Space", "mark"),
    ("c", "compare"),
    ("/", "filter"),
    ("R", "back"),
    ("?", "help"),
    ("q", "quit"),
)
_TOP, _DETAIL, _BOTTOM = 3, 5, 1
_MAX_HOST_WIDTH = 12
_MIN_NAME_WIDTH, _WHOLE_NAME_WIDTH, _MIN_SPARK_WIDTH = 8, 12, 4
_LAST_WIDTH = 100
"""Least width with a column for the age of the newest event."""


class RunListInputs(NamedTuple):
    """One moment of the list."""

    runs: RunList
    view: ViewState
    """Holds selection and scroll of `runs`."""
    now: int
    """Microseconds."""
    is_something_open: bool = False
    """True if a run is behind the list, to go back to."""

    @property
    def entries(self) -> list[tuple[MachineRuns, ListedRun]]:
        """Runs that the filter shows, in their order."""
        return [
            (machine, run)
            for machine, run in self.runs.entries
            if self.view.passes("runs", partial(_fields_of, machine, run))
        ]


_RESULTS = ("round", "acc", "value", "rate", "crit", "warn", "error")
FIELDS = ("name", "id", "host", "st", "kind", "tag", "project", *_RESULTS)
"""Names that a filter may use."""


def _fields_of(machine: MachineRuns, run: ListedRun) -> dict[str, FieldValue]:
    found = run.overview
    fields: dict[str, FieldValue] = {"name": run.name, "id": run.id, "host": machine.host}
    fields |= {"st": run.state or "", "kind": run.kind, "tag": " ".join(run.tags), "project": run.project}
    if found is not None:
        fields |= {"round": found.round, "crit": found.critical, "warn": found.warning, "error": found.error}
        fields["acc"] = None if found.accuracy is None else 100 * found.accuracy
        fields |= {"value": found.values[-1] if found.values else None, "rate": found.rate}
    return fields


def keys(inputs: RunListInputs) -> list[Hashable]:
    """(host, id) of the rows, in their order."""
    return [(machine.host, run.id) for machine, run in inputs.entries]


def _problems(inputs: RunListInputs) -> list[Row]:
    """A line for each machine that does not answer, with the age of what is shown of it."""
    found = []
    for machine in inputs.runs.machines:
        if machine.problem or machine.silence is not None:
            row = Row().put(" !! ", "alarm").put(f" {machine.host}", "bold")
            if machine.silence is not None:
                seconds = machine.silence
                age = f"{seconds}s" if seconds < 60 else format_age(seconds)
                row.put(f"  last heard {age} ago", "warning")
            why = machine.problem.removeprefix(machine.host).lstrip(": ") or "does not answer"
            found.append(row.put(f"  {why}", "critical"))
    return found


def selected_run(inputs: RunListInputs) -> tuple[MachineRuns, ListedRun] | None:
    """The row that Enter opens; None where there is none."""
    entries = inputs.entries
    return entries[inputs.view.selected_index("runs", keys(inputs))] if entries else None


def marked_runs(inputs: RunListInputs) -> list[tuple[MachineRuns, ListedRun]]:
    """The marked runs, also those that the filter hides, in the order of their letters."""
    by_key: dict[Hashable, tuple[MachineRuns, ListedRun]] = {
        (machine.host, run.id): (machine, run) for machine, run in inputs.runs.entries
    }
    return [by_key[key] for key in inputs.view.marked if key in by_key]


def run_list_lines(inputs: RunListInputs, width: int, height: int) -> list[Line]:
    """The whole screen, `height` lines; remembers in the view which rows were drawn."""
    rows = keys(inputs)
    problems = _problems(inputs)
    room = max(1, height - _TOP - _DETAIL - _BOTTOM - len(problems))
    scroll = inputs.view.visible_rows("runs", rows, room, top=_TOP + len(problems))
    inputs.view.scroll["runs"] = scroll
    at = inputs.view.selected_index("runs", rows)
    columns = _columns(inputs, width)
    lines = [_head(inputs, width)]
    lines += [row.line(width) for row in problems]
    lines.append(EMPTY)
    lines.append(_headings(columns, inputs.runs).line(width))
    marks = {(m.host, r.id): i for i, (m, r) in enumerate(marked_runs(inputs))}
    for i, (machine, run) in enumerate(inputs.entries[scroll.rows], scroll.start):
        mark = marks.get((machine.host, run.id))
        row = _row(inputs, machine, run, columns, mark=mark, selected=i == at)
        lines.append(row.line(width, selected=i == at))
    if not rows:
        lines += [EMPTY, *_nothing(inputs, width)]
    lines += [EMPTY] * (height - _DETAIL - _BOTTOM - len(lines))
    more = len(rows) - scroll.start - room
    lines += _detail(inputs, width, hidden=max(0, more))
    return sign_cuts([*lines[: height - _BOTTOM], _key_line(inputs, width)], inputs.view.glyphs.cut)


def _head(inputs: RunListInputs, width: int) -> Line:
    runs = inputs.runs
    name = "esper" if width < 120 else "esper overwatch"
    row = Row("bar").put(f" {name}", "title").put("  RUNS", "bold")
    num_live = len(runs.live)
    num_bad = sum(run.state in BAD_STATES for _, run in runs.entries)
    row.put(f"  {num_live} live", "ok" if num_live else "dim")
    row.put(f"  {len(runs.entries) - num_live} ended", "dim")
    if num_bad:
        row.put(f"  {num_bad} died or failed", "critical")
    num_silent = sum(machine.silence is not None for machine in runs.machines)
    if num_silent:
        row.put(f"  {num_silent} machine{'s' if num_silent > 1 else ''} silent", "critical")
    if not runs.is_answered:
        row.put("  asking ...", "warning")
    chosen = inputs.view.filter_note("runs")
    if chosen:
        row.put(f"  {chosen}", "accent").put(f"  shows {len(inputs.entries)}, Esc all", "dim")
    hosts = [machine.host or "this machine" for machine in runs.machines]
    return row.right(" ".join(hosts), "dim", width - 1).line(width)


class _Columns(NamedTuple):
    mark: int
    name: int
    host: int
    spark: int
    has_last: bool


def _columns(inputs: RunListInputs, width: int) -> _Columns:
    """Divide the space that fixed columns leave: first to the name, then to the course."""
    runs, mark = inputs.runs, 2 if marked_runs(inputs) else 0
    hosts = [len(machine.host or "here") for machine in runs.machines]
    host = min(_MAX_HOST_WIDTH, max(*hosts, 4) + 1) if len(hosts) > 1 else 0
    has_last = width >= _LAST_WIDTH
    left = width - 2 - mark - host - 10 - 11 - 6 - 8 - 8 - 7 - 6 - 8 * has_last - 1
    longest = max((len(run.name) for _, run in runs.entries), default=0) + 1
    spark = _MIN_SPARK_WIDTH if left >= min(longest, _WHOLE_NAME_WIDTH) + _MIN_SPARK_WIDTH else 0
    name = max(_MIN_NAME_WIDTH, min(longest, left - spark, 40))
    return _Columns(mark, name, host, min(33, left - name) if spark else 0, has_last)


def _headings(columns: _Columns, runs: RunList) -> Row:
    is_training = any(run.kind == "training" for _, run in runs.entries)
    row = Row().put("", "", 2 + columns.mark).put("RUN", "dim", columns.name)
    if columns.host:
        row.put("HOST", "dim", columns.host)
    row.put("STATE", "dim", 10).put("ROUND", "dim", 10, ">").put(" ")
    row.put("ACC", "dim", 5, ">").put(" ")
    row.put("RETURN" if is_training else "VALUE", "dim", 8, ">").put(" ")
    row.put("", "dim", columns.spark).put("RATE/H ", "dim", 8, ">").put("INC", "dim", 6)
    row.put("AGE", "dim", 6, ">")
    return row.put("LAST", "dim", 8, ">") if columns.has_last else row


def _row(
    inputs: RunListInputs,
    machine: MachineRuns,
    run: ListedRun,
    columns: _Columns,
    *,
    mark: int | None,
    selected: bool,
) -> Row:
    found = run.overview
    row = Row().put(inputs.view.glyphs.cursor if selected else " ", "focus").put(" ")
    if columns.mark:
        letter, style = ("", "") if mark is None else (LETTERS[mark], RUN_STYLES[mark])
        row.put(letter, style, columns.mark)
    row.put(cut_text(run.name, columns.name - 1), "bold" if run.live else "", columns.name)
    if columns.host:
        row.put(cut_text(machine.host or "here", columns.host - 1), "dim", columns.host)
    row.put(*_state(machine, run), 10)
    row.put(_position(run, found), "" if run.live else "dim", 10, ">").put(" ")
    row.put(format_percent(found.accuracy if found else None), "", 5, ">").put(" ")
    newest = found.values[-1] if found and found.values else None
    value = format_number(newest, ".4g" if run.kind == "published" else "+.2f")[:8]
    row.put(value, "bold" if run.live else "", 8, ">").put(" ")
    course = spark_of(found.values if found else (), columns.spark - 1, inputs.view.glyphs)
    row.put(course, "chart" if run.live else "dim", columns.spark)
    row.put(f"{_rate_text(found)} ", "" if run.live else "dim", 8, ">")
    if run.damage:
        row.put("damage", "critical", 6)
    else:
        _put_incidents(row, found, is_live=run.live)
    row.put(_age(inputs.now, run.created), "dim", 6, ">")
    if columns.has_last:
        row.put(_age(inputs.now, found.ts if found else 0), "dim", 8, ">")
    return row


def _state(machine: MachineRuns, run: ListedRun) -> tuple[str, str]:
    """Word and style; with a `?` where a live run's machine no longer answers."""
    if run.live and machine.silence is not None:
        return f"{run.state}?", "warning"
    return run.state or "--", STATE_STYLES.get(run.state, "warning")


def _rate_text(found: RunOverview | None) -> str:
    """What the value gains or loses in an hour, in at most seven characters; `flat` for neither."""
    rate = None if found is None else found.rate
    if not rate:
        return NOT_MEASURED if rate is None else "flat"
    size = abs(rate)
    if size < 1e-3 or size >= 1e12:
        return f"{rate:+.0e}"
    if size >= 1e3:
        return f"{'+' if rate > 0 else '-'}{format_count(size)}"
    return f"{rate:+.{0 if size >= 100 else 1 if size >= 1 else 3}f}"


def _position(run: ListedRun, found: RunOverview | None) -> str:
    if found is None:
        return "--"
    if run.kind == "published":
        return "--" if found.step is None else f"step {format_count(found.step)}"
    return f"{found.round}/{found.rounds}" if found.rounds else str(found.round)


def _put_incidents(row: Row, found: RunOverview | None, *, is_live: bool) -> None:
    """`2! 1?`: critical and warning; a full stop for none."""
    if found is None or not (found.critical or found.warning):
        row.put("--" if found is None else ".", "faint", 6)
        return
    critical = f"{found.critical}! " if found.critical else ""
    warning = f"{found.warning}?" if found.warning else ""
    row.put(critical, "critical" if is_live else "dim")
    row.put(warning, "warning" if is_live else "dim", max(0, 6 - len(critical)))


def spark_of(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """The newest values, a column each, scaled to what is shown."""
    shown = values[-width:] if width > 0 else ()
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    top = len(glyphs.spark) - 1
    if high - low <= 1e-9 * max(abs(high), abs(low), 1e-9):
        return glyphs.spark[0] * len(shown)
    return "".join(glyphs.spark[round((value - low) / (high - low) * top)] for value in shown)


def _age(now: int, ts: int) -> str:
    return format_age((now - ts) / 1e6) if ts else "--"


def format_age(seconds: float) -> str:
    """An age that changes seldom, since each change is sent: `now`, `4m`, `3h`, `5d`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "now"


def _detail(inputs: RunListInputs, width: int, *, hidden: int) -> list[Line]:
    """A rule, and three lines about the selected run."""
    more = f" {hidden} more below " if hidden else ""
    rule = Row().right(more, "dim", width - 1, inputs.view.glyphs.rule, "rule")
    lines = [rule.to(width, inputs.view.glyphs.rule, "rule").line(width)]
    entry = selected_run(inputs)
    if entry is None:
        return [*lines, *[EMPTY] * (_DETAIL - 1)]
    machine, run = entry
    lines.append(_about(inputs, machine, run).line(width))
    lines.append(_course_words(run).line(width))
    opens = "follows it" if run.live else "opens its recording"
    then = Row().put(" Enter ", "key").put(opens, "dim")
    commands = [] if run.live else run.next_commands
    if commands:
        then.put(f"  {inputs.view.glyphs.arrow} ").put(commands[0], "accent")
    lines.append(then.line(width))
    others = Row().put("        ").put("or ", "dim") if commands[1:] else Row()
    on_host = f"  (on {machine.host})" if machine.host and commands else ""
    lines.append(others.put("  ".join(commands[1:]), "accent").put(on_host, "dim").line(width))
    return lines


def _about(inputs: RunListInputs, machine: MachineRuns, run: ListedRun) -> Row:
    row = Row().put(" ").put(run.name, "bold").put(f"  {run.kind} {run.id}", "dim")
    if machine.host:
        row.put(f" on {machine.host}", "dim")
    if run.tags:
        row.put(f"  {', '.join(run.tags)}", "accent")
    found = run.overview
    row.put("  ").put(*_state(machine, run))
    if found is not None and not run.live:
        row.put(f" {_age(inputs.now, found.ts)} ago" if _age(inputs.now, found.ts) != "now" else " just now")
    if found is not None and found.stopped_by and not run.live:
        row.put(f" by {found.stopped_by}", "dim")
    if found is not None and found.error:
        row.put(f": {found.error}", "critical")
    elif found is not None and found.exit_code:
        row.put(f", exit {found.exit_code}", "critical")
    if run.damage:
        row.put(f"  damaged: {run.damage}", "critical")
    return row


def _course_words(run: ListedRun) -> Row:
    found = run.overview
    if found is None:
        return Row().put(" no event in its journal yet", "dim")
    row = Row().put(" ")
    if run.kind == "published":
        row.put(f"step {format_number(found.step, 'd')}", "")
    else:
        of = f" of {found.rounds}" if found.rounds else ""
        row.put(f"round {found.round}{of}, epoch {found.epoch}")
    if found.values:
        low, high = min(found.values), max(found.values)
        row.put(f"  {found.signal} ", "dim").put(format_number(found.values[-1], ".4g"), "bold")
        row.put(f"  from {low:.4g} to {high:.4g} in the newest {len(found.values)}", "dim")
        if found.rate is not None:
            row.put(f", {_rate_text(found)}{' an hour' if found.rate else ''}", "dim")
    if found.critical or found.warning:
        row.put(f"  {found.critical} critical, {found.warning} warning", "warning")
    return row


def _nothing(inputs: RunListInputs, width: int) -> list[Line]:
    if not inputs.runs.is_answered:
        return [Row().put(" asking ...", "dim").line(width)]
    if inputs.runs.entries:
        text = f" no run passes {inputs.view.filter_note('runs')}; Esc shows all"
        return [Row().put(text, "dim").line(width)]
    start = Row().put(" no run yet; start one with: ", "dim").put("esper-daemon start --detach", "accent")
    return [start.line(width), Row().put(" it appears here by itself", "dim").line(width)]


def _key_line(inputs: RunListInputs, width: int) -> Line:
    view = inputs.view
    if view.message:
        return Row("bar").put(" ").put(view.message, "key").line(width)
    row = Row()
    for key, name in KEYS:
        if key != "R" or inputs.is_something_open:
            row.put(f" {key} ", "key").put(f"{name} ", "dim")
    if view.read_only:
        row.right("read-only", "dim", width - 1)
    return row.line(width)
