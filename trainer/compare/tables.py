"""The tables of a comparison, as the terminal and the page show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DECIMALS = {"return": 3, "test_accuracy": 3, "added": 0, "fossilized": 2}
"""Figures, and the decimals that they are shown with."""
COMPARED = ("return", "test_accuracy", "added")
TASKS_OF_GROUP = {"trained": "tasks trained on", "unseen": "tasks never trained on"}


@dataclass(frozen=True)
class Table:
    """Cells in words, the first column on the left.

    Attributes:
        title: what is shown.
        is_worded: whether the last column is text, too.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    is_worded: bool = False


def make_tables(summary: dict[str, Any]) -> list[Table]:
    """Policies, searches, paired differences, figures by task.

    Args:
        summary: see `results.summarise`.
    """
    return [
        _policies(summary),
        *_searches(summary),
        *_differences(summary),
        *(_by_task(summary, name) for name in COMPARED),
    ]


def format_interval(interval: dict[str, Any], decimals: int, sign: str = "") -> str:
    """A mean and its limits, as `0.61 [0.58, 0.64]`, with `p 0.02` where it is signed; the mean alone where
    there are none."""
    mean, low, high = (interval[key] for key in ("mean", "low", "high"))
    if low is None:
        return f"{mean:{sign}.{decimals}f}"
    p = f" p {interval['p']:.2g}" if sign else ""
    return f"{mean:{sign}.{decimals}f} [{low:{sign}.{decimals}f}, {high:{sign}.{decimals}f}]{p}"


def _policies(summary: dict[str, Any]) -> Table:
    rows = [
        [
            policy["name"],
            str(policy["seeds"]),
            *(format_interval(policy["figures"][name], places) for name, places in DECIMALS.items()),
            policy["note"],
        ]
        for policy in summary["policies"]
    ]
    title = f"Policies on {summary['hosts']} held-out hosts of {', '.join(summary['averaged'])}"
    return Table(title, ["policy", "seeds", *DECIMALS, ""], rows, is_worded=True)


def _searches(summary: dict[str, Any]) -> list[Table]:
    rows = [
        [
            one["name"],
            format_interval(one["return"], DECIMALS["return"], "+"),
            f"{one['first']} | {one['second']}",
        ]
        for one in summary["searches"]
    ]
    header = ["searched", "return, first - second", "first | second"]
    return (
        [Table("Search noise: the same search on other hosts", header, rows, is_worded=True)] if rows else []
    )


def _differences(summary: dict[str, Any]) -> list[Table]:
    return [
        Table(
            f"Paired differences, {TASKS_OF_GROUP[group]}",
            ["", *COMPARED, "way"],
            [
                [
                    f"{one['first']} - {one['second']}",
                    *(
                        format_interval(one[name], DECIMALS[name], "+") if name in one else ""
                        for name in COMPARED
                    ),
                    _way(one),
                ]
                for one in found
            ],
            is_worded=True,
        )
        for group, found in summary["differences"].items()
        if found
    ]


def _way(difference: dict[str, Any]) -> str:
    """How far from the best constant to the oracle, where the row is about that."""
    if "share" not in difference:
        return ""
    share = difference["share"]
    return "the oracle is not above the constant" if share is None else f"{share:.0%} of the way"


def _by_task(summary: dict[str, Any], name: str) -> Table:
    rows = [
        [
            policy["name"],
            *(f"{policy['by_task'][task][name]:.{DECIMALS[name]}f}" for task in summary["tasks"]),
        ]
        for policy in summary["policies"]
    ]
    return Table(f"By task: {name}", ["policy", *summary["tasks"]], rows)
