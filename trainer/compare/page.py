"""A comparison as one HTML page without other files: tables, and the Pareto figure."""

from __future__ import annotations

from html import escape
from typing import Any

from .figure import pareto_svg
from .tables import Table, make_tables

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
