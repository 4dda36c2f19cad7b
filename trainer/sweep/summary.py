"""Findings of a sweep so far, as JSON and as the cells of a table."""

from __future__ import annotations

from typing import Any

from esper_overwatch.protocol.storage.folders import esper_home
from esper_overwatch.protocol.storage.lock import holder_of

from .space import format_value
from .study import RUNNING, SweepStudy, TrialResult

INTERRUPTED = "interrupted"
"""State of a trial whose run nobody trains now; the sweep's command goes on with it."""


def summarise(study: SweepStudy) -> dict[str, Any]:
    """All figures, as JSON has them."""
    terms, best = study.terms, study.best()
    return {
        "name": study.name,
        "folder": str(study.folder),
        "objective": terms["objective"],
        "space": terms["space"],
        "trials": [_trial(result) for result in study.results()],
        "best": None if best is None else _trial(best),
    }


def make_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of trials."""
    keys = list(summary["space"])
    header = ["run", "state", summary["objective"], "rounds", *keys, ""]
    rows = [
        [
            trial["run"],
            trial["state"],
            "--" if trial["value"] is None else f"{trial['value']:.4g}",
            str(max(map(int, trial["evaluations"]), default=0)),
            *(_cell(trial["options"].get(key)) for key in keys),
            trial["reason"],
        ]
        for trial in summary["trials"]
    ]
    return header, rows


def best_line(summary: dict[str, Any]) -> str:
    """The best trial, with its options as `start` takes them."""
    best = summary["best"]
    if best is None:
        return "best: no trial has finished yet"
    sets = " ".join(f"--set {key}={format_value(value)}" for key, value in best["options"].items())
    return f"best: {best['run']}, {summary['objective']} {best['value']:.4g}: {sets}"


def _trial(result: TrialResult) -> dict[str, Any]:
    parts = dict(vars(result))
    if result.state == RUNNING and holder_of(esper_home() / "runs" / result.run / "lock") is None:
        parts["state"] = INTERRUPTED
    return parts | {"evaluations": {str(round_): value for round_, value in result.evaluations.items()}}


def _cell(value: Any) -> str:
    if value is None:
        return "--"
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)
