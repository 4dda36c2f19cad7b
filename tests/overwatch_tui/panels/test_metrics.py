"""The table of a published run's metrics: groups, scrolling, what was not measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.model.metric_table import MetricTable
from esper_overwatch.overwatch_tui.panels import PANELS, metrics
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.messages import events as ev
from tests.overwatch_tui import journal
from tests.overwatch_tui.harness import folded, panel_inputs
from tests.overwatch_tui.runs import PUBLISHED


def told(*data: Any, view: ViewState | None = None) -> Any:
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    for one in data:
        run.emit(one)
    return panel_inputs(folded(decode_line(line) for line in run.lines), view or ViewState())


def shown(inputs: Any, width: int = 100, height: int = 20) -> list[str]:
    return [plain(line).rstrip() for line in metrics.body(inputs, width, height).lines]


def test_groups_have_a_row_of_their_own() -> None:
    inputs = told(ev.Scalars(step=3, values={"loss": 1.0, "env/1/a": 2.0, "env/0/b": math.nan}))
    assert metrics.keys(inputs) == [
        ("", "loss"),
        ("env/0", ""),
        ("env/0", "b"),
        ("env/1", ""),
        ("env/1", "a"),
    ]
    rows = shown(inputs)
    assert rows[1].split() == ["loss", "1", "─", "1", "1", "1", "3", "1"]
    assert rows[2] == " env/0"
    assert rows[3].split() == ["b", "nan", "--", "--", "--", "3", "1"]


def test_summary_corrects_what_a_late_viewer_missed() -> None:
    summary = ev.Summary(
        step=9,
        metrics={"loss": ev.MetricStatistics(step=9, last=2.0, count=10, min=1.0, max=8.0, mean=3.0)},
        texts={"verdict": "good"},
    )
    inputs = told(
        ev.Scalars(step=9, values={"loss": 2.0}), summary, ev.Scalars(step=10, values={"loss": 14.0})
    )
    assert shown(inputs)[1].split() == ["loss", "14", "─", "1", "14", "4", "10", "11"]
    assert shown(inputs)[2].split() == ["verdict", "good", "set", "by", "hand"]


def test_many_metrics_scroll_with_the_selection() -> None:
    view = ViewState()
    inputs = told(ev.Scalars(step=0, values={f"m{i:03d}": i for i in range(300)}), view=view)
    assert "m299" not in "\n".join(shown(inputs))
    view.move_selection("metrics", list(metrics.keys(inputs)), 1_000)
    assert "m299" in "\n".join(shown(inputs))


def test_before_the_first_value_nothing_is_invented() -> None:
    assert shown(told()) == [" nothing has been logged yet"]


@pytest.mark.parametrize("view", [*(view.name for view in PANELS.views), "charts", "about"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_every_view_of_a_published_run_is_drawn(view: str, size: tuple[int, int]) -> None:
    chosen = ViewState()
    PANELS.show(chosen, view)
    inputs = told(ev.Scalars(step=0, values={"loss": 1.0}), view=chosen)
    screen = compose_screen(PANELS, inputs, inputs, *size).text(*size)
    own = PANELS.of(is_published=True).view(chosen.name)
    assert f"[{own.key} " in screen.split("\n")[2], "a view that it lacks is the main one"
    assert "SEEDS" not in screen
    assert all(len(line) <= size[0] for line in screen.split("\n"))


def test_copy_is_not_changed_later() -> None:
    table = MetricTable()
    table.fold(ev.Scalars(step=0, values={"loss": 1.0}))
    copy = table.copy()
    table.fold(ev.Scalars(step=1, values={"loss": 3.0}))
    assert (copy.statistics["loss"].last, copy.step) == (1.0, 0)
    assert table.statistics["loss"].mean == 2.0
