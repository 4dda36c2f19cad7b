"""Returns and accuracies of the rounds over time."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.courses import Level
from esper_overwatch.overwatch_tui.render.lines import Line, Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.plot import Series


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Returns of the rounds above, accuracies beneath."""
    half = height // 2
    return Drawn(returns(inputs, width, half) + accuracies(inputs, width, height - half))


def returns(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """Quantiles of the returns, under a line that names them.

    Where the policy plays held-out hosts: the median, what it earned there, and a level for each rival.
    """
    median = Series("p50", inputs.course("return.p50"), "chart", mark="p50")
    if (held_out := inputs.course("evaluation.return")) is None:
        series = [
            Series("p10", inputs.course("return.p10"), "dim", mark="p10", dot="."),
            Series("p90", inputs.course("return.p90"), "chart2", mark="p90", dot="."),
            median,
        ]
        head = Row().put(" return of a round  ", "dim")
        head.put("p90 ", "chart2").put("p50 ", "chart").put("p10", "dim")
    else:
        rivals = [found for _, found in inputs.state.evaluations.values() if found.is_rival]
        series = [
            *(Series(one.policy, Level(one.return_mean), "dim", mark=one.policy, dot=".") for one in rivals),
            median,
            Series("held-out", held_out, "chart3", mark="PPO", dot="o"),
        ]
        head = Row().put(" return  ", "dim")
        head.put("p50", "chart").put("; held-out ", "dim").put("PPO", "chart3").put(" and rivals", "dim")
    return [head.line(width), *inputs.chart(series, width, max(1, height - 1), form="{:+.2f}")]


def accuracies(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """Mean and best accuracy, under a line that names them."""
    series = [
        Series("mean", inputs.course("accuracy.mean"), "chart", 100.0, "mean"),
        Series("best", inputs.course("accuracy.best"), "chart3", 100.0, "best", dot="o"),
    ]
    head = Row().put(" final accuracy %  ", "dim").put("best ", "chart3").put("mean", "chart")
    return [head.line(width), *inputs.chart(series, width, max(1, height - 1), form="{:.1f}")]


RENDERER = Renderer(
    title=lambda _: "RETURN AND ACCURACY",
    body=body,
    needs=lambda *_: (8, 16),
    note=lambda inputs: inputs.axis.name,
)
