"""A published run's numbers as charts: one for each name; names that differ in a count only share one."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.curves import metric_curve
from esper_overwatch.overwatch_tui.render.chart_view import MAX_PINS
from esper_overwatch.overwatch_tui.render.format import format_count, format_number
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, beside
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.plot import Series

CHART_WIDTH, CHART_HEIGHT, MIN_CHART_HEIGHT = 38, 12, 6
"""Columns and lines of one chart, its title included."""
MAX_SERIES = 6
_STYLES = ("chart", "chart2", "chart3", "accent", "info", "key")


def charted(inputs: PanelInputs) -> dict[str, list[str]]:
    """Names of numbers by chart: `env/*/return` has those of all envs."""
    charts: dict[str, list[str]] = {}
    for name in sorted(inputs.state.metrics.statistics, key=natural_order):
        charts.setdefault(chart_of(name), []).append(name)
    return charts


def chart_of(name: str) -> str:
    """The chart that a number is in: parts that are counts become `*`."""
    return "/".join("*" if part.isdecimal() else part for part in name.split("/"))


def natural_order(name: str) -> list[tuple[bool, int, str]]:
    """Sort key by which counts are ordered by their size."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in name.split("/")]


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The charts that fit, the selected one among them."""
    charts = charted(inputs)
    if not charts:
        return Drawn([Row().put(" nothing has been logged yet", "dim").line(width)])
    names = list(charts)
    # The least number of columns that gives each chart its height: few charts are wide.
    most = max(1, min(len(names), width // CHART_WIDTH))
    fitting = (n for n in range(1, most) if -(-len(names) // n) * CHART_HEIGHT <= height)
    columns = next(fitting, most)
    num_rows = -(-len(names) // columns)
    shown = max(1, min(num_rows, height // MIN_CHART_HEIGHT))
    at = inputs.view.selected_index("charts", names)
    top = max(0, min(at // columns - shown // 2, num_rows - shown))
    chart_height = max(1, height // shown)
    one = width // columns
    lines: list[Line] = []
    for row in range(top, top + shown):
        cells = [
            _chart(inputs, name, charts[name], one - 1, chart_height, is_selected=name == names[at])
            for name in names[row * columns : (row + 1) * columns]
        ]
        lines += beside(cells, one, width)
    hidden = len(names) - shown * columns
    if hidden > 0 and len(lines) < height:
        lines.append(Row().put(f" {hidden} more: j k", "dim").line(width))
    return Drawn(lines)


def _chart(
    inputs: PanelInputs, chart: str, names: list[str], width: int, height: int, *, is_selected: bool
) -> list[Line]:
    """Title, values, and the curves; `height` lines."""
    drawn = names[:MAX_SERIES]
    series = [Series(name, inputs.course(metric_curve(name)), _STYLES[i]) for i, name in enumerate(drawn)]
    head = Row().put(inputs.glyphs.cursor if is_selected else " ", "focus")
    head.put(f"{chart} ", "title" if is_selected else "bold")
    statistics = inputs.state.metrics.statistics
    for i, name in enumerate(drawn):
        head.put(f" {format_number(statistics[name].last, '.4g')}", _STYLES[i])
    if len(names) > len(drawn):
        head.put(f" and {len(names) - len(drawn)} more", "dim")
    lines = inputs.chart(series, width, max(1, height - 1))
    return [head.line(width, selected=is_selected), *lines]


def draw_large(inputs: PanelInputs, chart: str, width: int, height: int) -> list[Line]:
    """One chart alone, and a line for each of its numbers."""
    names = charted(inputs).get(chart, [])
    table = _figures(inputs, names, width, max(2, height // 3))
    room = max(MIN_CHART_HEIGHT, height - len(table) - 1)
    return [*_chart(inputs, chart, names, width, room, is_selected=False), EMPTY, *table]


def _figures(inputs: PanelInputs, names: list[str], width: int, height: int) -> list[Line]:
    lines = []
    column = max((len(name) for name in names), default=0) + 3
    for i, name in enumerate(names[:height]):
        one = inputs.state.metrics.statistics[name]
        style = _STYLES[i] if i < MAX_SERIES else "dim"
        row = Row().put(f" {name}", style, column).put(format_number(one.last, ".5g"), "bold", 11)
        figures = ((word, format_number(getattr(one, word), ".4g")) for word in ("min", "mean", "max"))
        row.put("".join(f"{word} {text}  " for word, text in figures), "dim")
        row.put(f"{format_count(one.count)} values", "dim")
        if one.nonfinite:
            row.put(f"  {one.nonfinite} not finite", "warning")
        lines.append(row.line(width))
    return lines


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    names = list(charted(inputs))
    if not names:
        return body(inputs, width, height)
    chosen = names[inputs.view.selected_index("charts", names)]
    return Drawn(draw_large(inputs, chosen, width, height))


def charts_of_row(inputs: PanelInputs) -> list[str]:
    """The curves of the selected chart, each alone."""
    found = charted(inputs)
    if not found:
        return []
    names = found[list(found)[inputs.view.selected_index("charts", list(found))]]
    curves = [metric_curve(name) for name in names]
    return [name for name in curves if inputs.history(name) is not None][:MAX_PINS]


RENDERER = Renderer(
    title=lambda inputs: f"CHARTS {len(charted(inputs))}",
    body=body,
    needs=lambda *_: (MIN_CHART_HEIGHT, 200),
    note=lambda inputs: f"{inputs.axis.name}  Enter one",
    keys=lambda inputs: list(charted(inputs)),
    detail=detail,
    charts=charts_of_row,
)
