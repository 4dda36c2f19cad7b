"""PPO against its rivals on held-out hosts, with the targets as gates.

    python -m benchmarks.comparison                       # PPO, random, no growth; 2 seeds: 2 minutes
    python -m benchmarks.comparison --full --to FOLDER    # preset mixture, all rivals, 5 seeds: some hours

What FOLDER holds already is not computed again: after Ctrl-C the same command goes on. docs/lab/learning.md
says what each policy is, and how the intervals are computed.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch

from esper_overwatch.trainer.cli.compare import format_summary
from esper_overwatch.trainer.compare.cells import CellStore
from esper_overwatch.trainer.compare.comparison import ComparisonRequest, compare
from esper_overwatch.trainer.compare.policy_words import parse_policies
from esper_overwatch.trainer.compare.progress import Progress
from esper_overwatch.trainer.compute.device import limit_threads
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts
from esper_overwatch.trainer.hosts.task_defaults import resolve_task_defaults

from .report import finish

FULL = (
    "no_growth,random,heuristic,fixed,constant,constant@5,oracle,static,bandit,"
    "ppo,ppo+shuffled,constant+shuffled"
)
SMALL = "no_growth,random,ppo"
SMALL_OPTIONS = (
    "envs.group_size=8",
    "envs.threads=1",
    "envs.convolution=grouped",
    "task.batch_size=32",
    "ppo.target_kl=0.05",
    "policy.decision_epochs=0,2,5",
    "envs.copies=2",
)
"""The small comparison, on the digits; executed in one way on every machine."""
Targets = dict[str, tuple[str, float]]


def find_difference(summary: Mapping[str, Any], first: str, second: str) -> dict[str, Any]:
    """The row of two policies, on the tasks that were trained on."""
    rows = summary["differences"]["trained"]
    found: dict[str, Any] = next(row for row in rows if (row["first"], row["second"]) == (first, second))
    return found


def lead_figures(summary: Mapping[str, Any], rivals: tuple[str, ...]) -> dict[str, float]:
    """Mean lead of PPO over each rival in return, and the lower limit of its interval."""
    figures = {}
    for rival in rivals:
        lead = find_difference(summary, "ppo", rival)["return"]
        figures[f"lead_over_{rival}"] = lead["mean"]
        figures[f"lead_over_{rival}_low"] = math.nan if lead["low"] is None else lead["low"]
    return figures


def small_gates(summary: Mapping[str, Any]) -> tuple[dict[str, float], Targets]:
    """PPO beats random and no growth."""
    figures = lead_figures(summary, ("random", "no_growth"))
    return figures, {f"lead_over_{rival}_low": (">", 0.0) for rival in ("random", "no_growth")}


def full_gates(summary: Mapping[str, Any]) -> tuple[dict[str, float], Targets]:
    """The targets of docs/lab/learning.md; growing pays where the best constant earns more than no growth."""
    rivals = ("constant", "heuristic", "random", "no_growth")
    figures = lead_figures(summary, rivals)
    by_name = {policy["name"]: policy for policy in summary["policies"]}
    way = find_difference(summary, "ppo", "a third of the way to oracle")
    shuffled = find_difference(summary, "ppo+shuffled", "ppo")["return"]["mean"]
    blind = find_difference(summary, "constant+shuffled", "constant")["return"]["mean"]
    within = [value for value in by_name["ppo"]["training"]["explained_variance_within"] if value is not None]
    tasks = by_name["ppo"]["by_task"]
    constant, bare = (by_name[name]["by_task"] for name in ("constant", "no_growth"))
    growing = [task for task in tasks if constant[task]["return"] > bare[task]["return"]]
    resting = [task for task in tasks if task not in growing]
    host = summary["host_parameters"]
    figures |= {
        "way_to_oracle": math.nan if way["share"] is None else way["share"],
        "shuffling_costs_share_of_lead": -shuffled / figures["lead_over_constant"],
        "shuffling_costs_constant": abs(blind),
        "explained_variance_within": sum(within) / len(within) if within else math.nan,
        "growth_where_none_helps": max((tasks[task]["added"] / host for task in resting), default=math.nan),
        "fossilized_where_growing_pays": min(
            (tasks[task]["fossilized"] for task in growing), default=math.nan
        ),
        "training_minutes": max(by_name["ppo"]["training"]["seconds"]) / 60,
        "episodes": by_name["ppo"]["training"]["episodes"],
    }
    targets: Targets = {f"lead_over_{rival}_low": (">", 0.0) for rival in rivals}
    targets |= {
        "way_to_oracle": (">=", 1 / 3),
        "shuffling_costs_share_of_lead": (">", 0.5),
        "shuffling_costs_constant": ("<=", 0.0),
        "explained_variance_within": (">", 0.3),
        "growth_where_none_helps": ("<=", 0.1),
        "fossilized_where_growing_pays": (">=", 1.0),
    }
    return figures, targets


@click.command()
@click.option("--full", is_flag=True, help="All rivals on the preset mixture, 5 seeds, 40 hosts.")
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), help="Folder of the results; to be resumable."
)
@click.option("--episodes", type=int, help="Of each training and search.  [default: 2688, small: 40]")
def main(full: bool, folder: Path | None, episodes: int | None) -> None:
    """Compare, print the tables, and end with a JSON line."""
    limit_threads()
    preset, sets = ("mixture", ()) if full else (None, SMALL_OPTIONS)
    sourced = settings.load_sourced(preset=preset, sets=("device=cpu", *sets))
    request = ComparisonRequest(
        parse_policies([FULL if full else SMALL]),
        seeds=5 if full else 2,
        episodes=episodes or (2688 if full else 40),
        held_out=HeldOutHosts(count=40 if full else 8),
    )
    progress = Progress(lambda line: print(line, file=sys.stderr, flush=True))
    with tempfile.TemporaryDirectory(prefix="esper-") as temporary:
        store = CellStore(folder or Path(temporary) / "small")
        if folder is None:
            os.environ["ESPER_HOME"] = temporary  # the runs of its trainings go with it
        data = load_task(sourced.config.task, torch.device("cpu"))
        cfg = resolve_task_defaults(sourced, data.name, data.kind).config  # as `esper-daemon compare` does
        summary = compare(cfg, data, request, store, torch.device("cpu"), progress)
    print("\n".join(format_summary(summary)))
    figures, targets = full_gates(summary) if full else small_gates(summary)
    finish("comparison", figures, targets)


if __name__ == "__main__":
    main()
