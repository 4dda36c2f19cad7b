"""The Pareto figure: who is on the front, and that every policy is drawn."""

from __future__ import annotations

import re
import sys

import pytest

from esper_overwatch.protocol.extras import install_command, missing_extra
from esper_overwatch.trainer.compare.page import pareto_front, pareto_svg


def interval(mean: float, *, arms: bool = True) -> dict[str, float | None]:
    return {"mean": mean, "low": mean - 0.01 if arms else None, "high": mean + 0.02 if arms else None}


POLICIES = (("no_growth", 0, 0.4, False), ("fixed", 1186, 0.9, True), ("<ppo & co>", 300, 0.92, True))
SUMMARY = {
    "policies": [
        {
            "name": name,
            "figures": {"added": interval(added, arms=arms), "test_accuracy": interval(accuracy, arms=arms)},
        }
        for name, added, accuracy, arms in POLICIES
    ]
}


def test_front_has_no_dominated_point() -> None:
    points = [(0.0, 0.4), (10.0, 0.3), (20.0, 0.9), (20.0, 0.8), (30.0, 0.9), (40.0, 0.95)]
    assert pareto_front(points) == [(0.0, 0.4), (20.0, 0.9), (40.0, 0.95)]
    assert pareto_front([]) == []


def test_every_policy_is_named_in_the_figure() -> None:
    pytest.importorskip("matplotlib")
    svg = pareto_svg(SUMMARY)
    assert svg.startswith("<svg")
    for name in ("no_growth", "fixed", "&lt;ppo &amp; co&gt;", "added parameters", "test accuracy"):
        assert re.search(rf">\s*{re.escape(name)}\s*<", svg), name


def test_figure_without_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        pareto_svg(SUMMARY)
    assert str(missing_extra(caught.value)).endswith(install_command("compare"))
