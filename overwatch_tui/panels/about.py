"""Description of a published run: tags, notes, its own summary, files, texts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from esper_overwatch.overwatch_tui.render.format import format_bytes, format_number
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.overview import fill_with_charts
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
        lines += _wrapped("notes", run.notes, width)
    if metrics.by_hand:
        lines += _summary(inputs, width)
    lines += _files(inputs, width)
    for text in metrics.texts.values():
        lines += [EMPTY, Row().put(f" {text.name}", "bold").put(f"  step {text.step}", "dim").line(width)]
        for paragraph in text.text.splitlines():
            lines += [Row().put("   ").put(part).line(width) for part in _parts(paragraph, width - 4)]
    return lines


def _label(text: str) -> Row:
    return Row().put(f" {text}", "dim", _LABEL)


def _parts(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(10, width)) or [""]


def _wrapped(label: str, text: str, width: int) -> list[Line]:
    parts = [part for line in text.splitlines() for part in _parts(line, width - _LABEL - 1)]
    return [_label("" if i else label).put(part).line(width) for i, part in enumerate(parts)]


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
        room = max(10, width - 4)
        path = [file.path[i : i + room] for i in range(0, len(file.path), room)]
        lines += [Row().put("   ").put(part, "accent").line(width) for part in path]
    return lines


RENDERER = Renderer(
    title=lambda _: "ABOUT",
    body=body,
    needs=lambda inputs, width: (4, len(_lines(inputs, max(20, width)))),
    note=note,
    keys=keys,
)
