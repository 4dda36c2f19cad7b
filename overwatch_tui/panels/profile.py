"""Result of the profiler: path of its trace, commands that open it, and its operators as a table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import PurePosixPath
from shlex import quote
from typing import Any

from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.format import format_bytes, format_count, format_number, rank_of
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, wrapped
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.protocol.messages.events import ProfilerFinished

ORDERS = ("share", "self time", "calls", "per call", "name")
_FIELDS = ("share", "self_us", "calls", "", "name")


def operators(inputs: PanelInputs) -> list[dict[str, Any]]:
    """Rows of the newest profile, in the order of the view."""
    profile = inputs.state.profile
    if profile is None:
        return []
    order, turned = inputs.view.order("profile")
    rows = sorted(profile.top, key=lambda row: _rank(row, order), reverse=order < len(ORDERS) - 1)
    return rows[::-1] if turned else rows


def _rank(row: dict[str, Any], order: int) -> Any:
    if ORDERS[order] == "name":
        return str(row.get("name", ""))
    return rank_of(_per_call(row) if ORDERS[order] == "per call" else row.get(_FIELDS[order]))


def _per_call(row: dict[str, Any]) -> float | None:
    """Self time of a call, microseconds."""
    total, calls = row.get("self_us"), row.get("calls")
    return total / calls if isinstance(total, int | float) and isinstance(calls, int) and calls else None


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    return [(str(row.get("name")), str(row.get("on"))) for row in operators(inputs)]


def note(inputs: PanelInputs) -> str:
    order, turned = inputs.view.order("profile")
    return f"by {ORDERS[order]}{' turned' if turned else ''}"


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return (0, 0) if inputs.state.profile is None else (8, len(inputs.state.profile.top) + 7)


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The trace's path and the commands that open it; one line an operator."""
    profile = inputs.state.profile
    if profile is None:
        return Drawn([Row().put(" no profile yet: P records one", "dim").line(width)])
    lines = _trace(profile, width)
    if profile.error:
        return Drawn([*lines, Row().put(f" {profile.error}", "critical").line(width)])
    lines += [EMPTY, Row().put("  SHARE   SELF ms   CALLS  us/CALL OPERATOR", "dim").line(width)]
    rows, names = operators(inputs), keys(inputs)
    scroll = inputs.view.visible_rows("profile", names, height - len(lines), top=len(lines))
    at = inputs.view.selected_index("profile", names)
    for i, row in enumerate(rows[scroll.rows], scroll.start):
        lines.append(_line(inputs, row, width, selected=i == at))
    return Drawn(fill_with_charts(inputs, lines, width, height), scroll)


def _trace(profile: ProfilerFinished, width: int) -> list[Line]:
    """Whole path of the trace, the programs that open it, and how well the machine was used."""
    lines = [Row().put(" trace ", "dim").put(format_bytes(profile.bytes), "dim").line(width)]
    lines += wrapped(profile.path, width, "bold", column=2, is_whole=True)
    opens = " open it at https://ui.perfetto.dev, or in chrome://tracing, or"
    lines.append(Row().put(opens, "dim").line(width))
    folder = str(PurePosixPath(profile.path).parent)
    lines += wrapped(f"tensorboard --logdir {quote(folder)}", width, "accent", column=2, is_whole=True)
    if profile.python_share is not None:
        used = Row().put(f" gpu {format_number(profile.gpu_utilisation, '.0%')} busy, ")
        used.put(f"{format_number(profile.kernels, 'd')} kernels, ")
        used.put(f"allocator {format_number(profile.allocator_seconds, '.3g')} s, ")
        lines.append(used.put(f"python {profile.python_share:.0%}").line(width))
    return lines


def _line(inputs: PanelInputs, found: dict[str, Any], width: int, *, selected: bool) -> Line:
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    share, total = found.get("share"), found.get("self_us")
    row.put(format_number(None if share is None else 100 * share, ".1f"), "accent", 5, ">").put("%", "dim")
    row.put(format_number(None if total is None else total / 1000, ".3f"), "", 10, ">")
    row.put(format_count(found.get("calls")), "", 8, ">")
    row.put(format_number(_per_call(found), ".1f"), "", 9, ">").put(f" {found.get('name', '?')}", "bold")
    if found.get("on"):
        row.put(f"  on {found['on']}", "dim")
    return row.line(width, selected=selected)


def title(inputs: PanelInputs) -> str:
    profile = inputs.state.profile
    return "PROFILE" if profile is None else f"PROFILE of {profile.epochs} epochs"


RENDERER = Renderer(
    title=title,
    body=body,
    needs=needs,
    note=note,
    keys=keys,
    orders=ORDERS,
    records=lambda inputs: [{**row, "us_per_call": _per_call(row)} for row in operators(inputs)],
)
