"""The gates of `benchmarks.comparison`: which figures they take of a comparison."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.comparison import full_gates, small_gates

RIVALS = ("constant", "heuristic", "random", "no_growth")


def lead(first: str, second: str, mean: float) -> dict[str, Any]:
    return {
        "first": first,
        "second": second,
        "return": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01},
    }


def summary(lead_over_rivals: float) -> dict[str, Any]:
    grown, resting = {"added": 300.0, "fossilized": 2.0}, {"added": 5.0, "fossilized": 0.1}
    ppo = {
        "name": "ppo",
        "by_task": {"digits": grown, "histogram": resting},
        "training": {"explained_variance_within": [0.4, None, 0.6], "seconds": [60.0, 90.0], "episodes": 64},
    }
    rivals = [
        {"name": name, "by_task": {"digits": {"return": digits}, "histogram": {"return": histogram}}}
        for name, digits, histogram in (("constant", 0.6, 0.5), ("no_growth", 0.3, 0.55))
    ]
    oracle = {"name": "oracle", "by_task": {"digits": grown, "histogram": {"added": 76.0}}}
    rows = [lead("ppo", rival, lead_over_rivals) for rival in RIVALS]
    rows += [lead("ppo+shuffled", "ppo", -0.03), lead("constant+shuffled", "constant", 0.0)]
    rows += [lead("ppo", "a third of the way to oracle", 0.01) | {"share": 0.5}]
    return {"policies": [ppo, oracle, *rivals], "differences": {"trained": rows}, "host_parameters": 100}


def test_full_gates_read_what_the_targets_name() -> None:
    figures, targets = full_gates(summary(0.05))
    assert set(targets) <= set(figures)
    assert figures["lead_over_constant_low"] == pytest.approx(0.04)
    assert figures["shuffling_costs_share_of_lead"] == pytest.approx(0.6)
    assert figures["explained_variance_within"] == pytest.approx(0.5)
    assert figures["growth_where_none_helps"] == pytest.approx(0.05)
    assert figures["fossilized_where_growing_pays"] == 2.0
    assert figures["training_minutes"] == pytest.approx(1.5)


def test_small_gates_want_both_leads_above_zero() -> None:
    figures, targets = small_gates(summary(0.005))
    assert targets == {"lead_over_random_low": (">", 0.0), "lead_over_no_growth_low": (">", 0.0)}
    assert all(figures[name] < 0.0 for name in targets), "the limit of the interval counts, not its mean"
