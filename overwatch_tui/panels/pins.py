"""Charts alone: those of a row, or the ones that the operator has pinned."""

from __future__ import annotations

from collections.abc import Sequence

from esper_overwatch.overwatch_tui.render.chart_page import (
    comparison_head,
    draw_charts,
    fill_with_charts,
    page_head,
)
from esper_overwatch.overwatch_tui.render.lines import Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer

TITLE = "PINNED CHARTS"
EMPTY_PINS = (
    "no chart is pinned yet",
    "",
    ":pin on a row pins its chart, Enter on it opens it alone.",
    "A page has up to 6, and keeps them for the next time.",
)


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A line of settings and keys, then the charts."""
    view = inputs.view.charts
    if view.names:
        head = [page_head(inputs, "CHARTS" if len(view.names) > 1 else "CHART", width)]
        head += comparison_head(inputs, width, height)
        return Drawn([*head, *draw_charts(inputs, view.names, width, height - len(head))])
    if not view.pins:
        said = [Row().to(max(0, (width - len(t)) // 2)).put(t, "dim").line(width) for t in EMPTY_PINS]
        return Drawn(fill_with_charts(inputs, said, width, height))
    selected = charts(inputs)[0] if len(view.pins) > 1 else None
    head = [page_head(inputs, TITLE, width), *comparison_head(inputs, width, height)]
    charts_ = draw_charts(inputs, view.pins, width, height - len(head), selected=selected)
    return Drawn([*head, *charts_])


def charts(inputs: PanelInputs) -> Sequence[str]:
    pins = inputs.view.charts.pins
    return pins[inputs.view.selected_index("pins", pins) :][:1]


RENDERER = Renderer(
    title=lambda _: TITLE,
    body=body,
    needs=lambda inputs, _: (8, 40) if inputs.view.charts.pins else (0, 0),
    keys=lambda inputs: inputs.view.charts.pins,
    charts=charts,
)
