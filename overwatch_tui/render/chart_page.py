"""Charts that fill a box, or what rows leave empty: each with its name, value and limits."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from esper_overwatch.overwatch_tui.model.courses import Course, Shifted, Smoothed
from esper_overwatch.overwatch_tui.model.curves import ComparedRun, metric_curve

from .chart_view import MAX_PINS, OVER_RUNS
from .comparison_table import RUN_STYLES, comparison_lines
from .format import format_duration, format_number
from .lines import EMPTY, Line, Row, StyledText, block
from .panel import PanelInputs
from .plot import Series, plot_grid
from .signals import Signal, mark_of, siblings, signal_of
from .theme import severity_label

GAP = 2
"""Columns between two charts."""
_BEST_ASPECT = 5.0
"""Columns for each line of a chart."""
MIN_CHART_LINES = 5
MAX_MARKED = 16
"""Largest number of overlaid curves that each show a number; above it only the chosen one does."""

MIN_FILL_LINES = 8
"""Least lines for charts; fewer are left empty."""
_CHART_WIDTH, _CHART_HEIGHT = 40, 8
"""Least columns and lines of one chart."""
_TRAINING = (
    "return.p50",
    "accuracy.mean",
    "ppo.approx_kl",
    "ppo.entropy",
    "ppo.explained_variance",
    "speed",
    "cpu.machine",
    "memory",
)
_MACHINE = ("cpu.machine", "memory", "gpu")


def num_columns(count: int, width: int, height: int) -> int:
    """Number of columns that fills a box best with charts: near the usual shape, with few empty places."""

    def cost(columns: int) -> float:
        rows = -(-count // columns)
        shape = (width / columns) / max(height / rows, 1.0)
        return abs(log(shape / _BEST_ASPECT)) + 0.3 * (columns * rows - count)

    return min(range(1, min(3, count) + 1), key=cost) if count else 1


def chart_width(count: int, width: int, height: int) -> int:
    """Columns of each of `count` charts in a box; a last row that is not full has wider ones."""
    columns = num_columns(count, width, height)
    return (width - GAP * (columns - 1)) // columns


def draw_charts(
    inputs: PanelInputs, names: Sequence[str], width: int, height: int, *, selected: str | None = None
) -> list[Line]:
    """As many of the charts as fit, row by row; the name of the `selected` one is highlighted."""
    columns = num_columns(len(names), width, height)
    rows = max(1, min(-(-len(names) // columns), height // MIN_CHART_LINES))
    lines: list[Line] = []
    for y in range(rows):
        shown = names[y * columns : (y + 1) * columns]
        tall = (height - len(lines)) // (rows - y)
        each = (width - GAP * (len(shown) - 1)) // len(shown)
        drawn = [_draw_chart(inputs, name, each, tall, is_selected=name == selected) for name in shown]
        gap: StyledText = (" " * GAP, "")
        for first, *others in zip(*drawn, strict=True):
            spans = [*first]
            for part in others:
                spans += [gap, *part]
            lines.append(tuple(spans))
    return block(lines, width, len(lines))


def _draw_chart(inputs: PanelInputs, name: str, width: int, height: int, *, is_selected: bool) -> list[Line]:
    """A line of words, then the chart."""
    signal, view = signal_of(inputs.state, name), inputs.view.charts
    lays_envs = view.overlay not in ("off", OVER_RUNS)
    family = siblings(list(inputs.state.curves.histories), name) if lays_envs else []
    series = _series(inputs, signal, family if len(family) > 1 else [])
    lines = inputs.chart(
        series,
        width,
        max(2, height - 1),
        limits=[(value * signal.scale, style) for value, style in signal.limits],
        floor=signal.floor,
        form=signal.form,
    )
    return [_headline(inputs, signal, len(family), width, is_selected=is_selected), *lines]


def _series(inputs: PanelInputs, signal: Signal, family: list[str]) -> list[Series]:
    """The curve, with the curves that it is laid over beneath it."""
    view, history = inputs.view.charts, inputs.course(signal.name)
    if view.overlay == OVER_RUNS:
        return _series_of_runs(inputs, signal)
    if history is None:
        return []
    found = []
    for other in family:
        if other != signal.name:
            mark = mark_of(other) if len(family) <= MAX_MARKED else ""
            found.append(Series(other, inputs.course(other), "dim", signal.scale, mark, True, "."))
    mark = mark_of(signal.name) if family else ""
    if not view.smoothing:
        return [*found, Series(signal.label, history, "chart", signal.scale, mark, is_line=bool(family))]
    if not family:
        found.append(Series("as measured", history, "faint", signal.scale, dot="."))
    smooth: Course = Smoothed(history, view.smoothing)
    return [*found, Series(signal.label, smooth, "chart", signal.scale, mark)]


def _of_run(inputs: PanelInputs, run: ComparedRun, name: str) -> Course | None:
    """The curve of another run: by step, or shifted as if both runs had begun together."""
    if inputs.axis.is_by_step:
        return run.curves.steps.get(name)
    history = run.curves.histories.get(name)
    return None if history is None else Shifted(history, inputs.view.charts.begin - run.begin)


def _series_of_runs(inputs: PanelInputs, signal: Signal) -> list[Series]:
    """The curve of every run that has it under the run's letter; that of the watched one on top."""
    view = inputs.view.charts
    courses = [
        (run.name, _of_run(inputs, run, signal.name), style, run.mark)
        for run, style in zip(view.runs, RUN_STYLES[1:], strict=False)
    ]
    courses.append((signal.label, inputs.course(signal.name), RUN_STYLES[0], "a"))
    return [
        Series(
            label,
            Smoothed(course, view.smoothing) if view.smoothing else course,
            style,
            signal.scale,
            mark,
            True,
            mark,
        )
        for label, course, style, mark in courses
        if course is not None
    ]


def _headline(inputs: PanelInputs, signal: Signal, family: int, width: int, *, is_selected: bool) -> Line:
    """` KL  0.0105  WARN 0.03 CRIT 0.06`, or the value under the cursor."""
    row = Row().put(f" {signal.label} ", "bold select" if is_selected else "bold").put(" ")
    is_over_runs, at = inputs.view.charts.overlay == OVER_RUNS, inputs.view.charts.at
    history = inputs.own_curves.histories.get(signal.name) or inputs.history(signal.name)
    if history is None:
        row.put("not measured in this run", "dim")
        if not is_over_runs:
            return row.line(width)
    elif at is not None:
        row.add(_value_at(inputs, signal, inputs.course(signal.name) or history, width, at))
    else:
        row.put(_figure(history.last * signal.scale), "key")
        age = f"  {format_duration(inputs.seconds_since(history.last_ts))} ago"
        if row.width + len(age) < width:
            row.put(age, "faint")
    words = Row()
    for value, severity in signal.limits:
        words.put(f"  {severity_label(severity)} ", "dim")
        words.put(_figure(value * signal.scale), severity)
    if is_over_runs:
        for run in inputs.view.charts.runs:
            words.put(f"  {run.mark} ", "dim").add(_value_of_run(inputs, signal, run, width))
    elif inputs.view.charts.overlay != "off":
        words.put("  nothing to lay it over" if family <= 1 else f"  over {family}", "dim")
    if row.width + words.width < width:
        row.add(tuple(words.spans))
    return row.line(width)


def _value_of_run(inputs: PanelInputs, signal: Signal, run: ComparedRun, width: int) -> Line:
    """The newest value of a compared run, or the one under the cursor."""
    course, newest = _of_run(inputs, run, signal.name), run.curves.histories.get(signal.name)
    if course is None or newest is None:
        return (("--", "dim"),)
    at = inputs.view.charts.at
    if at is None:
        return ((_figure(newest.last * signal.scale), "key"),)
    return _value_at(inputs, signal, course, width, at, span=False)


def _value_at(
    inputs: PanelInputs, signal: Signal, course: Course, width: int, at: int, *, span: bool = True
) -> Line:
    """The mean of a time's column; with `span` also from where to where its values reach."""
    grid = plot_grid(width, inputs.axis, inputs.glyphs)
    first = grid.column_of(at) * grid.per_cell
    buckets = grid.buckets(course)[max(0, first) : first + grid.per_cell] if first >= 0 else []
    known = [bucket for bucket in buckets if bucket is not None]
    row = Row()
    if not known:
        return tuple(row.put("--", "dim").spans)
    mean = sum(bucket.mean for bucket in known) / len(known)
    low, high = min(b.low for b in known), max(b.high for b in known)
    row.put(_figure(mean * signal.scale), "key")
    if span and high > low:
        row.put(f" ({_figure(low * signal.scale)} to {_figure(high * signal.scale)})", "dim")
    return tuple(row.spans)


def _figure(value: float) -> str:
    return format_number(value, ".4g")


def page_head(inputs: PanelInputs, words: str, width: int) -> Line:
    """Settings of the charts, and their keys."""
    view = inputs.view.charts
    row = Row().put(f" {words}", "title").put(f"  {inputs.axis.name}", "bold")
    if view.is_log:
        row.put("  log axis", "accent")
    if view.smoothing:
        row.put(f"  smoothed {view.smoothing:g}", "accent")
    if view.overlay != "off":
        row.put(f"  over {view.overlay}", "accent")
    if view.at is not None:
        row.put(f"  {inputs.axis.label(view.at)}", "key")
        if not inputs.axis.is_by_step:
            row.put(f", {format_duration((inputs.now - view.at) / 1e6)} ago", "key")
    keys = "h l cursor  s save  : zoom, axis, log_axis, smooth, overlay, pin"
    if row.width + len(keys) + 2 > width:
        keys = "s save  : more"
    return row.right(keys, "dim", width - 1).line(width)


def comparison_head(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """In what the compared runs differ, in at most a third of the lines; none where there are none."""
    view, state = inputs.view.charts, inputs.state
    if view.overlay != OVER_RUNS or view.watched is None:
        return []
    name = view.watched.name
    config = state.run.config if state.run else {}
    own = ComparedRun("a", name, view.begin, inputs.own_curves, config)
    words = f"by {inputs.axis.unit}" if inputs.axis.is_by_step else "since begin"
    return comparison_lines([own, *view.runs], width, label=words, height=height // 3, first=view.names)


def overview_curves(inputs: PanelInputs) -> list[str]:
    """Names of the curves that are shown where none is chosen, the most telling first."""
    logged = map(metric_curve, sorted(inputs.state.metrics.statistics))
    names = (*logged, *_MACHINE) if inputs.state.is_published else _TRAINING
    return [name for name in names if inputs.history(name) is not None]


def fill_with_charts(
    inputs: PanelInputs, lines: Sequence[Line], width: int, height: int, names: Sequence[str] | None = None
) -> list[Line]:
    """The lines, and charts of the named curves (None = the overview) in what is left of `height` lines."""
    room = height - len(lines) - 1
    chosen = overview_curves(inputs) if names is None else names
    if room < MIN_FILL_LINES or not chosen:
        return list(lines)
    count = max(1, min(MAX_PINS, (width // _CHART_WIDTH) * (room // _CHART_HEIGHT)))
    return [*lines, EMPTY, *draw_charts(inputs, chosen[:count], width, room)]
