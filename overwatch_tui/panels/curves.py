"""What all of it is for: returns and accuracies over time."""

from __future__ import annotations

from ..frame import Frame, Panel
from ..lines import Line, Row
from ..widgets.plot import Series, chart


def title(frame: Frame) -> str:
    return "RETURN AND ACCURACY"


def note(frame: Frame) -> str:
    return frame.window_name


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 8, 20


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """Returns of the rounds above, accuracies beneath."""
    half = height // 2
    return _returns(frame, width, half) + _accuracies(frame, width, height - half)


def side_by_side(frame: Frame, width: int, height: int) -> list[Line]:
    """The same two, next to each other."""
    half = (width - 2) // 2
    pairs = zip(_returns(frame, half, height), _accuracies(frame, half, height), strict=True)
    return [Row().add(left).to(half + 2).add(right).line(width) for left, right in pairs]


def _returns(frame: Frame, width: int, height: int) -> list[Line]:
    series = [
        Series("p10", frame.history("return.p10"), "dim"),
        Series("p90", frame.history("return.p90"), "chart2"),
        Series("p50", frame.history("return.p50"), "chart"),
    ]
    head = (
        Row().put(" return of a round  ", "dim").put("p90 ", "chart2").put("p50 ", "chart").put("p10", "dim")
    )
    return [head.line(width), *_plot(frame, series, width, height - 1, "{:+.2f}")]


def _accuracies(frame: Frame, width: int, height: int) -> list[Line]:
    series = [
        Series("mean", frame.history("accuracy.mean"), "chart", 100.0),
        Series("best", frame.history("accuracy.best"), "chart3", 100.0),
    ]
    head = Row().put(" final accuracy %  ", "dim").put("best ", "chart3").put("mean", "chart")
    return [head.line(width), *_plot(frame, series, width, height - 1, "{:.1f}")]


def _plot(frame: Frame, series: list[Series], width: int, height: int, form: str) -> list[Line]:
    return chart(
        series, width, max(1, height), now=frame.now, window=frame.window, glyphs=frame.glyphs, form=form
    )


PANEL = Panel(name="curves", title=title, body=body, needs=needs, note=note)
