"""All commands of the run and their results, newest first."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from functools import partial

from esper_overwatch.overwatch_tui.model.commands import STATE_STYLES, TrackedCommand
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.format import format_clock, format_duration
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer

from .log import entry_line

FIELDS = ("id", "what", "state", "by", "ms")


def _rows(inputs: PanelInputs) -> list[TrackedCommand]:
    """Commands that the filter shows, the newest first."""
    found = inputs.state.commands.newest_first()
    return [each for each in found if inputs.view.passes("commands", partial(_fields_of, each))]


def _fields_of(command: TrackedCommand) -> dict[str, FieldValue]:
    return {
        "id": command.id,
        "what": command.title,
        "state": command.state,
        "by": command.by,
        "ms": None if command.rtt is None else 1000 * command.rtt,
    }


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    return [command.id for command in _rows(inputs)]


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A table of commands."""
    commands = _rows(inputs)
    # Columns of who sent a command; 0 where neither that nor what became of it fits.
    longest = max([4, *(len(command.by) for command in commands)])
    by = min(24, longest, width - 66) if width >= 76 else 0
    titles = "    #  WHEN      COMMAND                  STATE       RTT"
    lines = [Row().put(titles, "dim").put(f"  {'BY':<{by}} WHAT" if by else "", "dim").line(width)]
    if not commands:
        text = inputs.empty_text("commands", "command", "no command yet")
        lines.append(Row().put(f" {text}", "dim").line(width))
    ids = keys(inputs)
    scroll = inputs.view.visible_rows("commands", ids, height - 1, top=1)
    at = inputs.view.selected_index("commands", ids)
    for i, command in enumerate(commands[scroll.rows], scroll.start):
        lines.append(_line(inputs, command, width, by, selected=i == at))
    if commands and inputs.is_alone:
        found = [EMPTY, *_in_full(commands[at], width)]
        lines += found if height - len(lines) > len(found) else []
    return Drawn(fill_with_charts(inputs, lines, width, height), scroll)


def _line(inputs: PanelInputs, command: TrackedCommand, width: int, by: int, *, selected: bool) -> Line:
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    row.put(f"{command.number}", "dim", 4, ">").put(f"  {format_clock(command.ts)}  ", "dim")
    row.put(command.title, "bold", 24).put(" ")
    row.put(command.state, STATE_STYLES.get(command.state, "accent"), 9)
    row.put("--" if command.rtt is None else f"{1000 * command.rtt:.0f}ms", "dim", 6, ">")
    if command.state in ("NACK", "FAILED"):
        row.put("  ").put(command.detail, "dim")
    elif by:
        left = inputs.state.epochs_left(command)
        what = command.detail if left is None else f"{left} epochs left"
        row.put("  ").put(command.by, "", by).put(" ").put(what, "dim")
    return row.line(width, selected=selected)


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    commands = _rows(inputs)
    if not commands:
        return body(inputs, width, height)
    command = commands[inputs.view.selected_index("commands", keys(inputs))]
    lines = _in_full(command, width)
    since = [entry for entry in inputs.state.log if entry.ts >= command.ts][: max(0, height - len(lines) - 2)]
    if since:
        lines += [EMPTY, Row().put(" what happened from then on", "bold").line(width)]
        lines += [entry_line(inputs, entry, width, selected=False) for entry in since]
    return Drawn(fill_with_charts(inputs, lines, width, height))


def _in_full(command: TrackedCommand, width: int) -> list[Line]:
    rtt = "--" if command.rtt is None else f"{1000 * command.rtt:.1f} ms"
    took = format_duration((command.ended - command.ts) / 1e6) if command.ended else "--"
    facts = (
        ("id", command.id),
        ("method", command.method),
        ("parameters", json.dumps(command.params)),
        ("by", command.by),
        ("sent", format_clock(command.ts)),
        ("answered in", rtt),
        ("took", took),
        ("state", command.state),
        ("what", command.detail or "--"),
    )
    lines = [Row().put(f" command #{command.number}", "title").line(width), EMPTY]
    lines += [Row().put(f"   {name:<12}", "dim").put(value).line(width) for name, value in facts]
    for name, value in command.result.items():
        lines.append(Row().put(f"   {name:<12}", "dim").put(str(value)).line(width))
    return lines


RENDERER = Renderer(
    title=lambda inputs: f"COMMANDS {len(_rows(inputs))}",
    body=body,
    needs=lambda *_: (3, 10),
    note=lambda inputs: inputs.view.filter_note("commands") or ("read-only" if inputs.view.read_only else ""),
    keys=keys,
    fields=lambda _: FIELDS,
    records=lambda inputs: [_fields_of(each) for each in _rows(inputs)],
    detail=detail,
)
