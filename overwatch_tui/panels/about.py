"""Description of a published run: tags, notes, its own summary, files, texts."""

from __future__ import annotations

from collections.abc import Sequence

from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.format import format_bytes, format_number
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, wrapped
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer

_LABEL = 11


def note(inputs: PanelInputs) -> str:
    return f"{len(inputs.state.metrics.artifacts)} files  {len(inputs.state.metrics.texts)} texts"


def keys(inputs: PanelInputs) -> Sequence[int]:
    """Numbers of the lines: they scroll."""
    return range(len(_lines(inputs, 80)))


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Everything, wrapped; j and k scroll."""
    lines = _lines(inputs, width)
    rows = range(len(lines))
    scroll = inputs.view.visible_rows("about", rows, height, top=0)
    shown = lines[scroll.rows]
    return Drawn(fill_with_charts(inputs, shown, width, height), scroll)


def _lines(inputs: PanelInputs, width: int) -> list[Line]:
    run, metrics = inputs.state.run, inputs.state.metrics
    if run is None:
        return [Row().put(" no data yet", "dim").line(width)]
    lines = [
        _label("run").put(run.name, "bold").put(f"  id {run.run}  pid {run.pid} on {run.host}").line(width)
    ]
    if run.tags:
        lines.append(_label("tags").put("  ".join(run.tags), "accent").line(width))
    if run.notes:
        lines += wrapped(run.notes, width, label=" notes", column=_LABEL)
    if metrics.by_hand:
        lines += _summary(inputs, width)
    lines += _files(inputs, width)
    for text in metrics.texts.values():
        lines += [EMPTY, Row().put(f" {text.name}", "bold").put(f"  step {text.step}", "dim").line(width)]
        lines += wrapped(text.text, width)
    return lines


def _label(text: str) -> Row:
    return Row().put(f" {text}", "dim", _LABEL)


def _summary(inputs: PanelInputs, width: int) -> list[Line]:
    """Summary values that the loop has set."""
    found = sorted(inputs.state.metrics.by_hand.items())
    return [
        _label("" if i else "summary")
        .put(f"{name} ", "dim")
        .put(value if isinstance(value, str) else format_number(value, ".6g"), "bold")
        .line(width)
        for i, (name, value) in enumerate(found)
    ]


def _files(inputs: PanelInputs, width: int) -> list[Line]:
    """Each file with its path, which is wrapped and never cut."""
    lines: list[Line] = []
    for file in inputs.state.metrics.artifacts.values():
        head = Row().put(f" {file.name}", "bold").put(f"  {file.kind}  {format_bytes(file.bytes)}", "dim")
        lines += [EMPTY, head.put(f"  step {file.step}", "dim").line(width)]
        lines += wrapped(file.path, width, "accent", is_whole=True)
    return lines


RENDERER = Renderer(
    title=lambda _: "ABOUT",
    body=body,
    needs=lambda inputs, width: (4, len(_lines(inputs, max(20, width)))),
    note=note,
    keys=keys,
)
