"""What a published run logs, by group: the newest of each number, array, table and image; Enter shows one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from esper_overwatch.overwatch_tui.model.curves import metric_curve
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.chart_view import MAX_PINS
from esper_overwatch.overwatch_tui.render.format import format_bytes, format_count, format_number
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, wrapped
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.picture import picture_lines
from esper_overwatch.protocol.messages.events import Artifact, Histogram, LoggedTable

from .metric_charts import chart_of, charted, draw_large, natural_order

_COLUMN = 10
_COLUMNS = (("MIN", "min"), ("MAX", "max"), ("MEAN", "mean"), ("STEP", "step"), ("N", "count"))
"""Headings and fields, the most important first: as many are shown as fit."""
_MIN_NAME_WIDTH, _MAX_NAME_WIDTH = 16, 40
_MIN_COURSE_WIDTH, _MAX_COURSE_WIDTH = 12, 60


_MAX_CELL_WIDTH = 32
MIN_CHART_LINES = 10
"""Lines left that are worth a chart of the selected number."""
FIELDS = ("name", "last", "min", "mean", "max", "step", "n")


def _fields_of(inputs: PanelInputs, name: str) -> dict[str, FieldValue]:
    metrics = inputs.state.metrics
    by_hand, one = metrics.by_hand.get(name), metrics.statistics.get(name)
    array, other = metrics.histograms.get(name), metrics.tables.get(name) or metrics.images.get(name)
    found: dict[str, FieldValue] = {"name": name, "last": by_hand}
    if one is not None:
        found |= {"min": one.min, "mean": one.mean, "max": one.max, "step": one.step, "n": one.count}
        found["last"] = one.last if by_hand is None else by_hand
    elif array is not None:
        found |= {"min": array.min, "mean": array.mean, "max": array.max, "step": array.step, "n": array.size}
    elif other is not None:
        found |= {"step": other.step, "n": getattr(other, "size", None)}
    return found


def note(inputs: PanelInputs) -> str:
    step = inputs.state.metrics.step
    return inputs.view.filter_note("metrics") or ("" if step is None else f"step {step}")


def keys(inputs: PanelInputs) -> Sequence[tuple[str, str]]:
    """(group, name within it) of the rows in their order; the name of a group's own row is empty."""
    metrics = inputs.state.metrics
    found = metrics.statistics.keys() | metrics.histograms.keys() | metrics.by_hand.keys()
    found |= metrics.tables.keys() | metrics.images.keys()
    names = sorted(found, key=lambda name: (natural_order(name.rpartition("/")[0]), name))
    names = [name for name in names if inputs.view.passes("metrics", partial(_fields_of, inputs, name))]
    rows: list[tuple[str, str]] = []
    for group, leaf in (name.rpartition("/")[::2] for name in names):
        if group and (not rows or rows[-1][0] != group):
            rows.append((group, ""))
        rows.append((group, leaf))
    return rows


class _Widths(NamedTuple):
    name: int
    course: int
    num_columns: int
    """Number of columns shown of `_COLUMNS`."""


def _widths(rows: Sequence[tuple[str, str]], width: int) -> _Widths:
    """Widths for as many columns as leave room for the course of a number."""
    longest = max((len(leaf) + 3 if leaf else len(group) + 1 for group, leaf in rows), default=0)
    name = max(_MIN_NAME_WIDTH, min(_MAX_NAME_WIDTH, longest + 1, width // 2))
    left = width - name - _COLUMN - 2
    num_columns = max(0, min(len(_COLUMNS), (left - _MIN_COURSE_WIDTH) // _COLUMN))
    course = max(0, min(_MAX_COURSE_WIDTH, left - num_columns * _COLUMN))
    return _Widths(name, course, num_columns)


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    rows = keys(inputs)
    if not rows:
        text = inputs.empty_text("metrics", "metric", "nothing has been logged yet")
        return Drawn([Row().put(f" {text}", "dim").line(width)])
    widths = _widths(rows, width)
    head = Row().put("  METRIC", "dim", widths.name).put("LAST", "dim", _COLUMN, ">")
    head.put("  ").put(f"last {inputs.window_name}", "dim", widths.course)
    for word, _ in _COLUMNS[: widths.num_columns]:
        head.put(word, "dim", _COLUMN, ">")
    scroll = inputs.view.visible_rows("metrics", rows, height - 2, top=1)
    at = inputs.view.selected_index("metrics", rows)
    lines = [head.line(width)]
    for i, row in enumerate(rows[scroll.rows], scroll.start):
        lines.append(_line(inputs, row, widths).line(width, selected=i == at))
    room = height - len(lines) - 1
    shown = _selected(inputs, width, room) if room >= MIN_CHART_LINES else []
    return Drawn([*lines, EMPTY, *shown], scroll)


def _line(inputs: PanelInputs, key: tuple[str, str], widths: _Widths) -> Row:
    group, leaf = key
    if not leaf:
        return Row().put(f" {group}", "bold")
    name = f"{group}/{leaf}" if group else leaf
    metrics = inputs.state.metrics
    row = Row().put(f"{'   ' if group else '  '}{leaf}", "", widths.name)
    one, array = metrics.statistics.get(name), metrics.histograms.get(name)
    table, image = metrics.tables.get(name), metrics.images.get(name)
    if name in metrics.by_hand:
        value = metrics.by_hand[name]
        row.put(value if isinstance(value, str) else _number(value), "accent", _COLUMN, ">")
        row.put("  set by hand", "dim")
    elif one is not None:
        row.put(_number(one.last), "bold", _COLUMN, ">").put("  ")
        row.put(inputs.sparkline(metric_curve(name), widths.course - 1), "chart", widths.course)
        _put_figures(row, one, one.count, widths)
    elif array is not None:
        row.put("array", "dim", _COLUMN, ">").put("  ")
        row.put(f"of {array.size}", "dim", widths.course)
        _put_figures(row, array, array.size, widths)
    elif table is not None:
        row.put("table", "dim", _COLUMN, ">").put(f"  {', '.join(table.columns)}", "dim", widths.course + 2)
        _put_figures(row, table, table.size, widths)
    elif image is not None:
        row.put("image", "dim", _COLUMN, ">").put(f"  {_size_of(image)}", "dim", widths.course + 2)
        _put_figures(row, image, 1, widths)
    return row


def _put_figures(row: Row, found: Any, count: int, widths: _Widths) -> None:
    """Figures of what was logged, as far as it has any."""
    for _, field in _COLUMNS[: widths.num_columns]:
        if field == "count":
            row.put(format_count(count), "dim", _COLUMN, ">")
        elif field == "step":
            row.put(str(found.step), "dim", _COLUMN, ">")
        else:
            row.put(_number(getattr(found, field)) if hasattr(found, field) else "", "", _COLUMN, ">")


def _number(value: float | None) -> str:
    text = format_number(value, ".4g")
    return text if len(text) < _COLUMN else format_number(value, ".2g")


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The chart of the selected number; of a group, its charts one above the other."""
    lines = _selected(inputs, width, height) if keys(inputs) else []
    return Drawn(lines) if lines else body(inputs, width, height)


def _selected(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """Details of the selected row; none where no number of it was logged."""
    rows = keys(inputs)
    group, leaf = rows[inputs.view.selected_index("metrics", rows)]
    name = f"{group}/{leaf}" if group and leaf else leaf
    metrics = inputs.state.metrics
    if name in metrics.histograms:
        return _counts(metrics.histograms[name], inputs, width, height)
    charts = list(charted(inputs))
    wanted = [one for one in charts if (one if leaf else one.rpartition("/")[0]) == chart_of(name or group)]
    if not wanted and name in metrics.tables:
        return _cells(metrics.tables[name], width, height)
    if not wanted and name in metrics.images:
        return _picture(metrics.images[name], inputs, width, height)
    if not wanted:
        return _by_hand(inputs, name, width)
    each = height // len(wanted[: max(1, height // 10)])
    return [line for one in wanted[: height // each] for line in draw_large(inputs, one, width, each)]


def _by_hand(inputs: PanelInputs, name: str, width: int) -> list[Line]:
    """A value that the loop has set, whole."""
    value = inputs.state.metrics.by_hand.get(name)
    if value is None:
        return []
    text = value if isinstance(value, str) else format_number(value, ".10g")
    head = Row().put(f" {name}", "title").put("  set by hand", "dim").line(width)
    return [head, *wrapped(text, width, "accent")]


def _counts(array: Histogram, inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """A histogram: a bar per bin, from the least value to the greatest."""
    head = Row().put(f" {array.name}", "title").put(f"  {array.size} values at step {array.step}", "dim")
    figures = ((word, _number(getattr(array, word))) for word in ("min", "mean", "max", "std"))
    head.put("  " + "  ".join(f"{word} {text}" for word, text in figures), "dim")
    lines = [head.line(width), EMPTY]
    most, low, high = max(array.counts, default=0), array.min or 0.0, array.max or 0.0
    room = max(4, width - 32)
    for i, count in enumerate(array.counts[: height - 2]):
        begin = low + (high - low) * i / len(array.counts)
        row = Row().put(_number(begin), "dim", 12, ">").put(f" {inputs.glyphs.bar}", "rule")
        row.put(inputs.glyphs.full * round(count / max(most, 1) * room), "chart").put(f" {count}", "dim")
        lines.append(row.line(width))
    return lines


def _size_of(image: Artifact) -> str:
    return f"{image.preview.width}x{image.preview.height}" if image.preview else format_bytes(image.bytes)


def _picture(image: Artifact, inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """An image in half blocks; where there are no colours, or no preview, where it is."""
    told = dict.fromkeys((_size_of(image), format_bytes(image.bytes), f"step {image.step}"))
    head = Row().put(f" {image.name}", "title").put(f"  {'  '.join(told)}", "dim").line(width)
    preview, lines = image.preview, list[Line]()
    if preview and inputs.view.has_colour and inputs.glyphs.name == "unicode":
        lines = list(picture_lines(preview.pixels, preview.columns, width - 2, height - 1))
    if lines:
        return [head, *(Row().put(" ").add(line).line(width) for line in lines)]
    why = "a preview needs a terminal with colours and Unicode" if preview else "its run has made no preview"
    path = wrapped(image.path, width, is_whole=True)
    return [head, Row().put(f"   {why}", "dim").line(width), *path]


def _cells(table: LoggedTable, width: int, height: int) -> list[Line]:
    """The first rows of a table, and as many columns as fit; numbers stand at the right of theirs."""
    rows = [[_cell(value) for value in row] for row in table.rows[: max(0, height - 2)]]
    rows = [[*row, *[""] * len(table.columns)][: len(table.columns)] for row in rows]
    shown = f"{len(rows)} of {table.size} rows" if len(rows) < table.size else f"{table.size} rows"
    head = Row().put(f" {table.name}", "title").put(f"  {shown}  step {table.step}", "dim")
    names, lines = Row(), [Row() for _ in rows]
    for column, name in enumerate(table.columns):
        texts = [row[column] for row in rows]
        wide = min(_MAX_CELL_WIDTH, max(map(len, (name, *texts))))
        if names.width and names.width + 2 + wide > width:
            names.put("  …", "dim")
            break
        is_number = any(isinstance(row[column], int | float) for row in table.rows if column < len(row))
        names.put("  ").put(name, "dim", wide, ">" if is_number else "<")
        for row, text in zip(lines, texts, strict=True):
            row.put("  ").put(text, "", wide, ">" if is_number else "<")
    return [head.line(width), names.line(width), *(row.line(width) for row in lines)]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return format_number(value, ".5g")
    return "--" if value is None else " ".join(str(value).split())


def charts(inputs: PanelInputs) -> list[str]:
    """The selected number; of a group, its first numbers."""
    rows = keys(inputs)
    if not rows:
        return []
    group, leaf = rows[inputs.view.selected_index("metrics", rows)]
    leaves = [leaf] if leaf else [other for name, other in rows if name == group and other]
    names = [metric_curve(f"{group}/{one}" if group else one) for one in leaves]
    return [name for name in names if inputs.history(name) is not None][:MAX_PINS]


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    names = [f"{group}/{leaf}".lstrip("/") for group, leaf in keys(inputs) if leaf]
    return [_fields_of(inputs, name) for name in names]


RENDERER = Renderer(
    title=lambda inputs: f"METRICS {len(inputs.state.metrics.statistics)}",
    body=body,
    needs=lambda inputs, _: (3, len(keys(inputs)) + 2),
    note=note,
    keys=keys,
    detail=detail,
    fields=lambda _: FIELDS,
    records=records,
    charts=charts,
    grows=True,
)
