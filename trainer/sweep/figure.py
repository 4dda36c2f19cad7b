"""The plot of a sweep: evaluations of each trial over the rounds, and values against each option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_overwatch.protocol.errors import EsperError, FolderError
from esper_overwatch.protocol.extras import require

from .space import format_value
from .study import FINISHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
MAX_COLUMNS = 3
_MARKS = {FINISHED: ("o", "C0"), "not finished": ("x", "0.6")}


class PlotError(EsperError):
    """Not a file that a plot can be written to."""

    exit_code = 2


def check_plot_file(file: Path) -> None:
    """Before anything is computed.

    Raises:
        PlotError: its name does not say what to write.
        MissingExtra: matplotlib is not installed.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise PlotError(f"{file}: a plot's name ends in {', '.join(SUFFIXES)}")
    require("matplotlib")


def write_plot(summary: dict[str, Any], file: Path) -> None:
    """Draw it.

    Args:
        summary: see `summary.summarise`.
        file: its suffix says the format.

    Raises:
        FolderError: it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    space: dict[str, Any] = summary["space"]
    columns = min(MAX_COLUMNS, 1 + len(space))
    rows = -(-(1 + len(space)) // columns)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "esper", "font.family": "sans-serif"}):
        figure = Figure(figsize=(4.5 * columns, 3.6 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        _draw_rounds(panels[0], summary)
        for axes, (key, dimension) in zip(panels[1:], space.items(), strict=False):
            _draw_option(axes, key, dimension, summary)
        for axes in panels[1 + len(space) :]:
            axes.remove()
        figure.suptitle(f"sweep {summary['name']}")
        try:
            figure.savefig(file)
        except OSError as error:
            raise FolderError(f"cannot write {file}: {error.strerror}") from None


def _draw_rounds(axes: Axes, summary: dict[str, Any]) -> None:
    """A line for each trial, the best one on top."""
    best = summary["best"]
    for trial in summary["trials"]:
        is_best = best is not None and trial["number"] == best["number"]
        colour = "C1" if is_best else _MARKS[_group(trial)][1]
        axes.plot(
            [int(round_) for round_ in trial["evaluations"]],
            list(trial["evaluations"].values()),
            color=colour,
            linewidth=2 if is_best else 1,
            zorder=2 if is_best else 1,
            marker=".",
            label=f"{trial['run']}, the best" if is_best else None,
        )
    if best is not None:
        axes.legend()
    axes.set_xlabel("round")
    axes.set_ylabel(summary["objective"])
    axes.grid(alpha=0.3)


def _group(trial: Mapping[str, Any]) -> str:
    """Its row of `_MARKS`: the newest value of others than finished ones is not their last."""
    return FINISHED if trial["state"] == FINISHED else "not finished"


def _draw_option(axes: Axes, key: str, dimension: Mapping[str, Any], summary: dict[str, Any]) -> None:
    """A mark for each trial that has a value; choices stand side by side."""
    choices = [format_value(choice) for choice in dimension["choices"]]
    for group, (marker, colour) in _MARKS.items():
        points = [
            (trial["options"][key], trial["value"])
            for trial in summary["trials"]
            if trial["value"] is not None and _group(trial) == group
        ]
        at = [choices.index(format_value(x)) if choices else x for x, _ in points]
        axes.scatter(at, [y for _, y in points], marker=marker, color=colour, label=group)
    if choices:
        axes.set_xticks(range(len(choices)), choices)
    elif dimension["log"]:
        axes.set_xscale("log")
    axes.set_xlabel(key)
    axes.legend()
    axes.grid(alpha=0.3)
