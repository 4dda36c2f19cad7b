"""Returns and accuracies of the rounds over time."""

from __future__ import annotations

from overwatch_tui.render.lines import Line, Row
from overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from overwatch_tui.render.plot import Series


def title(inputs: PanelInputs) -> str:
    return "RETURN AND ACCURACY"


def note(inputs: PanelInputs) -> str:
    return inputs.window_name


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return 8, 20


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Returns of the rounds above, accuracies beneath."""
    half = height // 2
    return Drawn(_returns(inputs, width, half) + _accuracies(inputs, width, height - half))


def side_by_side(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """The same two, next to each other."""
    half = (width - 2) // 2
    pairs = zip(_returns(inputs, half, height), _accuracies(inputs, half, height), strict=True)
    return [Row().add(left).to(half + 2).add(right).line(width) for left, right in pairs]


def _returns(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    series = [
        Series("p10", inputs.history("return.p10"), "dim"),
        Series("p90", inputs.history("return.p90"), "chart2"),
        Series("p50", inputs.history("return.p50"), "chart"),
    ]
    head = (
        Row().put(" return of a round  ", "dim").put("p90 ", "chart2").put("p50 ", "chart").put("p10", "dim")
    )
    return [head.line(width), *_plot(inputs, series, width, height - 1, "{:+.2f}")]


def _accuracies(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    series = [
        Series("mean", inputs.history("accuracy.mean"), "chart", 100.0),
        Series("best", inputs.history("accuracy.best"), "chart3", 100.0),
    ]
    head = Row().put(" final accuracy %  ", "dim").put("best ", "chart3").put("mean", "chart")
    return [head.line(width), *_plot(inputs, series, width, height - 1, "{:.1f}")]


def _plot(inputs: PanelInputs, series: list[Series], width: int, height: int, form: str) -> list[Line]:
    return inputs.chart(series, width, max(1, height), form=form)


RENDERER = Renderer(title=title, body=body, needs=needs, note=note)
