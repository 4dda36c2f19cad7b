"""In what runs that are compared differ: options, and the last value of each curve that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esper_overwatch.overwatch_tui.model.curves import ComparedRun

from .format import NOT_MEASURED, format_count, format_number
from .lines import Line, Row

RUN_STYLES = ("chart", "chart2", "chart3", "accent", "info", "key")
"""Styles of compared runs in the order of their letters: a run keeps its colour."""

_RESULTS = ("return.", "accuracy.", "evaluation.", "lead.", "metric/")
"""Beginnings of the names of results."""
_OF_MACHINE = ("cpu", "cpu.machine", "rss", "memory", "gpu")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(dotted name, value in words) of what is nested."""
    found: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found += leaves(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", str(value)))
    return found


def differing_options(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Values in words by option, a value for each run, of the options in which not all agree."""
    known = [dict(leaves(run.config)) for run in runs]
    names = dict.fromkeys(name for each in known for name in each)
    rows = {name: [each.get(name, NOT_MEASURED) for each in known] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def last_values(runs: Sequence[ComparedRun], first: Sequence[str] = ()) -> dict[str, list[str]]:
    """The newest value of each curve that all have: those named `first`, then results, then the others.

    Of a training those of its rounds, not of each env; none of the machine, for which the run cannot help.
    """
    shared = set.intersection(*(set(run.curves.histories) for run in runs))
    names = [
        name
        for name in runs[0].curves.histories
        if name in shared and name not in _OF_MACHINE and ("/" not in name or name.startswith("metric/"))
    ]
    return {
        name.removeprefix("metric/"): [format_number(run.curves.histories[name].last, ".4g") for run in runs]
        for name in sorted(names, key=lambda name: (name not in first, not name.startswith(_RESULTS)))
    }


def comparison_lines(
    runs: Sequence[ComparedRun],
    width: int,
    *,
    label: str = "",
    height: int | None = None,
    first: Sequence[str] = (),
) -> list[Line]:
    """The table: a column for each run under its letter and name; `...` where a run is still being read.

    Args:
        label: above the names of the rows.
        height: the most lines; the last of them then says how many rows there are besides.
        first: names of curves whose values come first.
    """
    read = [run for run in runs if run.curves.histories]
    options, values = differing_options(read), last_values(read, first) if read else {}
    values = {"steps": [format_count(run.curves.max_step) for run in read], **values}
    if height is not None:
        fits = max(2, height - 2)
        num_options = min(len(options), max(fits // 2, fits - len(values)))
        shown_options = dict(list(options.items())[:num_options])
        shown_values = dict(list(values.items())[: fits - num_options])
    else:
        shown_options, shown_values = options, values
    is_read = [run in read for run in runs]
    rows = [*shown_options.items(), *shown_values.items()]
    names = min(width // 3, max(len(name) for name in (label, *dict(rows))) + 2)
    each = max(8, (width - names) // len(runs))
    head = Row().put(f" {label}"[: names - 1], "dim", names)
    for run, style in zip(runs, RUN_STYLES, strict=False):
        head.put(f"{run.mark} ", style).put(f"{run.name}"[: each - 3], "bold", each - 2)
    lines = [head.line(width)]
    for title, part in {"options": shown_options, "last values": shown_values}.items():
        if height is None:
            lines.append(Row().put(f" {title}{'' if part else ': all agree'}", "title").line(width))
        for name, row in part.items():
            cells = iter(row)
            every = [next(cells) if known else "..." for known in is_read]
            line = Row().put(f" {name}"[: names - 1], "dim", names)
            for value in every:
                line.put(value[: each - 1], "key", each)
            lines.append(line.line(width))
    hidden = len(options) - len(shown_options), len(values) - len(shown_values)
    if any(hidden):
        words = [f"{n} {name}" for n, name in zip(hidden, ("options", "values"), strict=True) if n]
        lines.append(Row().put(f" {' and '.join(words)} more: esper-tui --once", "dim").line(width))
    return lines
