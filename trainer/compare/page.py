"""A comparison as one HTML page without other files: tables, and the Pareto figure."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from .tables import Table, make_tables


def pareto_svg(summary: dict[str, Any]) -> str:
    """The figure as an SVG element.

    Args:
        summary: see `results.summarise`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    points = [_point(policy) for policy in summary["policies"]]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "esper", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        front = pareto_front([(added.mean, accuracy.mean) for _, added, accuracy in points])
        axes.plot(
            [x for x, _ in front], [y for _, y in front], color="0.75", zorder=0, drawstyle="steps-post"
        )
        for name, added, accuracy in points:
            axes.errorbar(
                added.mean,
                accuracy.mean,
                xerr=added.arms,
                yerr=accuracy.arms,
                marker="o",
                markersize=5,
                linestyle="none",
                elinewidth=1,
            )
            axes.annotate(name, (added.mean, accuracy.mean), xytext=(6, 4), textcoords="offset points")
        axes.set_xlabel("added parameters")
        axes.set_ylabel("test accuracy")
        axes.grid(alpha=0.3)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    document = text.getvalue()
    return document[document.index("<svg") :]


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (cost, gain) that no other is at least as good as in both, by rising cost."""
    front: list[tuple[float, float]] = []
    for cost, gain in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or gain > front[-1][1]:
            front.append((cost, gain))
    return front


@dataclass(frozen=True)
class _Mark:
    """A mean and how far its interval reaches below and above it."""

    mean: float
    below: float
    above: float

    @property
    def arms(self) -> list[list[float]] | None:
        """As matplotlib takes error bars; None where there is no interval."""
        return None if math.isnan(self.below) else [[self.below], [self.above]]


def _point(policy: Mapping[str, Any]) -> tuple[str, _Mark, _Mark]:
    """Name, added parameters and test accuracy."""

    def mark(figure: str) -> _Mark:
        mean, low, high = (_number(policy["figures"][figure][key]) for key in ("mean", "low", "high"))
        return (
            _Mark(mean, max(0.0, mean - low), max(0.0, high - mean)) if low == low else _Mark(mean, low, high)
        )

    return policy["name"], mark("added"), mark("test_accuracy")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child, table.worded td:last-child { text-align: left; }
svg { max-width: 100%; height: auto; }
"""


def render_page(summary: dict[str, Any]) -> str:
    """The page.

    Args:
        summary: see `results.summarise`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Policies compared</title>",
        f"<style>{STYLE}</style>",
        "<h1>Policies compared</h1>",
        f"<p>Trained policies: {summary['seeds']} seeds, {summary['episodes']:,} episodes each. "
        f"Intervals: {escape(summary['method'])}.</p>",
        pareto_svg(summary),
        *map(_table, make_tables(summary)),
        "</html>\n",
    ]
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    kind = " class='worded'" if table.is_worded else ""
    return f"<h2>{escape(table.title)}</h2>\n<table{kind}><tr>{head}</tr>\n{body}</table>"
