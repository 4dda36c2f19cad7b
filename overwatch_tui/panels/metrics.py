"""A published run's numbers: the newest of each, by group, with least, mean and greatest."""

from __future__ import annotations

from collections.abc import Sequence

from overwatch_tui.render.format import format_count, format_number
from overwatch_tui.render.lines import EMPTY, Row, restyle
from overwatch_tui.render.panel import Drawn, PanelInputs, Renderer

_COLUMN = 11
_HEADINGS = ("LAST", "MIN", "MEAN", "MAX", "STEP", "N")
_MIN_NAME_WIDTH = 20


def title(inputs: PanelInputs) -> str:
    return f"METRICS {len(inputs.state.metrics.statistics)}"


def note(inputs: PanelInputs) -> str:
    step = inputs.state.metrics.step
    return "" if step is None else f"step {step}"


def keys(inputs: PanelInputs) -> Sequence[tuple[str, str]]:
    """(group, name within it) of the rows in their order; the name of a group's own row is empty."""
    metrics = inputs.state.metrics
    names = sorted(metrics.statistics.keys() | metrics.histograms.keys() | metrics.by_hand.keys())
    rows: list[tuple[str, str]] = []
    for group, leaf in sorted(name.rpartition("/")[::2] for name in names):
        if group and (not rows or rows[-1][0] != group):
            rows.append((group, ""))
        rows.append((group, leaf))
    return rows


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return 3, len(keys(inputs)) + 2


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A header and a row per metric."""
    rows = keys(inputs)
    if not rows:
        return Drawn([Row().put(" nothing has been logged yet", "dim").line(width)])
    num_columns = min(len(_HEADINGS), (width - _MIN_NAME_WIDTH) // _COLUMN)
    name_width = max(_MIN_NAME_WIDTH, width - _COLUMN * num_columns - 1)
    head = Row().put("  METRIC", "dim", name_width)
    for word in _HEADINGS[: max(1, num_columns)]:
        head.put(word, "dim", _COLUMN, ">")
    scroll = inputs.view.visible_rows("metrics", rows, height - 2, top=1)
    at = inputs.view.selected_index("metrics", rows)
    lines = [head.line(width)]
    for i, row in enumerate(rows[scroll.rows], scroll.start):
        line = _line(inputs, row, name_width).line(width)
        lines.append(restyle(line, "select") if i == at else line)
    return Drawn([*lines, EMPTY], scroll)


def _line(inputs: PanelInputs, key: tuple[str, str], name_width: int) -> Row:
    group, leaf = key
    if not leaf:
        return Row().put(f" {group}", "bold")
    name = f"{group}/{leaf}" if group else leaf
    metrics = inputs.state.metrics
    row = Row().put(f"{'   ' if group else '  '}{leaf}", "", name_width)
    one, array = metrics.statistics.get(name), metrics.histograms.get(name)
    if name in metrics.by_hand:
        value = metrics.by_hand[name]
        row.put(value if isinstance(value, str) else _number(value), "accent", _COLUMN, ">")
        row.put("  set by hand", "dim")
    elif one is not None:
        row.put(_number(one.last), "bold", _COLUMN, ">")
        _put_course(row, (one.min, one.mean, one.max), one.step, one.count)
    elif array is not None:
        row.put("array", "dim", _COLUMN, ">")
        _put_course(row, (array.min, array.mean, array.max), array.step, array.size)
    return row


def _put_course(row: Row, numbers: Sequence[float | None], step: int, count: int) -> None:
    for number in numbers:
        row.put(_number(number), "", _COLUMN, ">")
    row.put(str(step), "dim", _COLUMN, ">").put(format_count(count), "dim", _COLUMN, ">")


def _number(value: float | None) -> str:
    return format_number(value, ".4g")


RENDERER = Renderer(title=title, body=body, needs=needs, note=note, keys=keys)
