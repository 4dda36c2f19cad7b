"""In what runs that are compared differ: options, and the last value of each curve that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from esper_overwatch.overwatch_tui.model.curves import Curves

from .format import NOT_MEASURED, format_count, format_number
from .lines import Line, Row


class ComparedValues(NamedTuple):
    """A run of the table."""

    mark: str
    name: str
    config: Mapping[str, Any]
    curves: Curves


def leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(dotted name, value in words) of what is nested."""
    found: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found += leaves(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", str(value)))
    return found


def differing_options(runs: Sequence[ComparedValues]) -> dict[str, list[str]]:
    """Values in words by option, a value for each run, of the options in which not all agree."""
    known = [dict(leaves(run.config)) for run in runs]
    names = dict.fromkeys(name for each in known for name in each)
    rows = {name: [each.get(name, NOT_MEASURED) for each in known] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def last_values(runs: Sequence[ComparedValues]) -> dict[str, list[str]]:
    """The newest value of each curve that all have; of a training those of its rounds, not of each env."""
    shared = set.intersection(*(set(run.curves.histories) for run in runs))
    names = [name for name in runs[0].curves.histories if name in shared and not _is_of_part(name)]
    return {
        name.removeprefix("metric/"): [format_number(run.curves.histories[name].last, ".4g") for run in runs]
        for name in names
    }


def comparison_lines(runs: Sequence[ComparedValues], width: int) -> list[Line]:
    """The table: a column for each run under its letter and name."""
    steps = {"steps": [format_count(run.curves.max_step) for run in runs]}
    rows = {"": [f"{run.mark} {run.name}" for run in runs]}
    parts = {"options": differing_options(runs), "last values": steps | last_values(runs)}
    cells = [*rows.items(), *(row for part in parts.values() for row in part.items())]
    first = min(width // 3, max(len(name) for name, _ in cells) + 2)
    each = max(8, (width - first) // len(runs))
    lines = [_row("", rows[""], first, each, width, "bold")]
    for title, part in parts.items():
        words = title if part else f"{title}: all agree"
        lines.append(Row().put(f" {words}", "title").line(width))
        lines += [_row(name, row, first, each, width) for name, row in part.items()]
    return lines


def _row(name: str, values: Sequence[str], first: int, each: int, width: int, style: str = "key") -> Line:
    row = Row().put(f" {name}"[: first - 1], "dim", first)
    for value in values:
        row.put(value[: each - 1], style, each)
    return row.line(width)


def _is_of_part(name: str) -> bool:
    return "/" in name and not name.startswith("metric/")
