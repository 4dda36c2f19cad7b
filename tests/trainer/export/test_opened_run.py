"""A run's past from Python: what was logged is what is there, live and ended."""

from __future__ import annotations

import math
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from esper_overwatch import open_run, publish
from esper_overwatch.protocol.runs import RunNotFound
from esper_overwatch.trainer.export.opened_run import UnknownScalar
from tests.protocol.harness import until

LOSSES = [1.0, 0.5, math.nan, 0.25]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a run that has ended."""
    with publish("past", config={"lr": 0.1}, home=tmp_path, strict=True) as run:
        for step, loss in enumerate(LOSSES):
            run.log(step=10 * step, loss=loss, **{"eval/acc<b>": step / 4})
    return tmp_path


def test_scalars_are_what_was_logged(home: Path) -> None:
    run = open_run("past", home=home)
    loss, accuracy = run.scalars("loss", "eval/acc<b>").values()
    np.testing.assert_equal(np.asarray(loss.values), LOSSES)
    assert list(loss.steps) == list(accuracy.steps) == [0, 10, 20, 30]
    assert sorted(loss.times) == list(loss.times)
    assert list(accuracy.values) == [0.0, 0.25, 0.5, 0.75]
    assert run.config == {"lr": 0.1}
    assert [event.data.reason for event in run.events("run.stopped")] == ["finished"]
    assert not run.damage.lines


def test_scalars_of_a_live_run_grow(tmp_path: Path) -> None:
    with publish("live", home=tmp_path, strict=True) as loop:
        loop.log(step=0, loss=1.0)
        run = open_run(home=tmp_path)
        until(lambda: [len(curve) for curve in run.scalars().values()] == [1])
        loop.log(step=1, loss=0.5)
        until(lambda: list(run.scalars("loss")["loss"].values) == [1.0, 0.5])


def test_a_table_has_a_row_for_each_value(home: Path) -> None:
    rows = open_run("past", home=home).table("eval/acc<b>").to_pylist()
    assert [(row["name"], row["step"], row["value"]) for row in rows] == [
        ("eval/acc<b>", 10 * i, i / 4) for i in range(4)
    ]
    assert all(row["time"].tzinfo is not None for row in rows)


def test_sql_answers_in_python(home: Path) -> None:
    answer = open_run("past", home=home).query("SELECT max(step) AS last FROM scalars WHERE name = 'loss'")
    assert (answer.columns, answer.rows) == (["last"], [(30,)])


def test_a_notebook_shows_each_curve(home: Path) -> None:
    html = open_run("past", home=home)._repr_html_()
    assert re.findall(r"<td>([^<]+)</td><td><svg", html) == ["loss", "eval/acc&lt;b&gt;"]
    points = [line.split() for line in re.findall(r'points="([^"]*)"', html)]
    assert [len(line) for line in points] == [3, 4], "what is not a number is not drawn"
    assert points[1][0] == "0.0,24.0"
    assert points[1][-1] == "160.0,0.0"
    assert html.endswith("<td>0.75</td></tr></table>")


def test_a_plot_has_a_line_for_each_scalar(home: Path) -> None:
    with mpl.rc_context({"backend": "agg"}):
        axes = open_run("past", home=home).plot("loss")
    (line,) = axes.get_lines()
    np.testing.assert_equal(line.get_ydata(), LOSSES)


def test_what_is_not_there_is_named(home: Path) -> None:
    with pytest.raises(UnknownScalar, match="past has no scalar 'los'"):
        open_run("past", home=home).scalars("los")
    with pytest.raises(RunNotFound, match="other"):
        open_run("other", home=home)
