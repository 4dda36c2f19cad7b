"""`esper-daemon compare`: policies on the same held-out hosts, with intervals, a figure and a page."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT
from esper_overwatch.protocol.extras import require
from esper_overwatch.protocol.storage.folders import write_atomically
from esper_overwatch.trainer.compare.page import render_page
from esper_overwatch.trainer.compare.policy_words import default_policies, parse_policies
from esper_overwatch.trainer.compare.tables import make_tables
from esper_overwatch.trainer.config import load as settings

from .options import JSON, config_options
from .output import format_table, print_json, print_lines, print_note

UNUSED = {
    "rounds": "the rounds of a training follow from --episodes and envs.count",
    "seed": "trainings have the seeds 1 to --seeds, the held-out hosts that of --host-seed",
    "policy.kind": "--policy names what is compared",
    **dict.fromkeys(
        ("policy.learn", "policy.greedy", "policy.temperature"), "ppo is trained, and played greedily"
    ),
    "policy.constant": "the policy constant searches for its schedule",
    "evaluation": "--policy, --hosts and --host-seed say what is played on which held-out hosts",
}
"""Options and sections of them that have no effect on a comparison, and what there is instead."""
TRAINED = {"policy.kind": "ppo", "policy.learn": True, "policy.greedy": False, "policy.temperature": 1.0}
"""Options of trainings, whatever a preset or a file says of the policy of a run."""


@click.command()
@config_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME,...",
    help="Policies: ppo, bandit, a rival, or a file of `policy export`; default: all.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Trainings of ppo.")
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    default=4000,
    show_default=True,
    help="Episodes of each training and of each search.",
)
@click.option(
    "--hosts",
    type=click.IntRange(1, 4096),
    default=40,
    show_default=True,
    help="Held-out hosts, the same for all policies.",
)
@click.option("--host-seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of these.")
@click.option(
    "--tasks", metavar="NAME,...", help="Tasks of the held-out hosts; default: those that ppo is trained on."
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the results; what it holds already is not computed again.",
)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with the figure.")
@JSON
def compare(
    preset: str | None,
    file: Path | None,
    sets: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int,
    episodes: int,
    hosts: int,
    host_seed: int,
    tasks: str | None,
    folder: Path,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compare policies on held-out hosts: return, test accuracy, added parameters, paired differences.

    Rivals: no_growth, random, heuristic, fixed, constant (the best of all constant schedules), constant@5
    (planted at epoch 5), oracle (the best of each task), static (the seeds that ppo ends with, at once).
    Learned: ppo; bandit@5 (a contextual bandit that plants at epoch 5).
    Controls: ppo+shuffled (measurements of another host), constant+shuffled. A training is a run, named for
    the folder. Ctrl-C ends it; the same command goes on.
    """
    sourced = _load_configuration(preset, file, sets, episodes, has_tasks=tasks is not None)
    if html is not None:
        require("matplotlib")  # before hours of work, not after
    from esper_overwatch.trainer.compare.cells import CellStore
    from esper_overwatch.trainer.compare.comparison import ComparisonRequest
    from esper_overwatch.trainer.compare.comparison import compare as compute
    from esper_overwatch.trainer.compare.progress import Progress
    from esper_overwatch.trainer.compute.device import (
        configure_allocator,
        limit_threads,
        prepare_device,
        resolve_device,
    )
    from esper_overwatch.trainer.data.registry import load_task
    from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts
    from esper_overwatch.trainer.hosts.task_defaults import check_sizes, resolve_task_defaults
    from esper_overwatch.trainer.policy.saved_policy import with_policy_options

    limit_threads()
    sourced = with_policy_options(sourced)
    words = parse_policies(policies) or default_policies(sourced.config)
    named = tuple(filter(None, map(str.strip, (tasks or "").split(","))))
    request = ComparisonRequest(words, seeds, episodes, HeldOutHosts(host_seed, hosts, named))
    configure_allocator(sourced.config.cuda, os.environ)
    device = resolve_device(sourced.config.device, 0)
    prepare_device(sourced.config.cuda, device)
    data = load_task(sourced.config.task, device)
    cfg = resolve_task_defaults(sourced, data.name, data.kind).config
    if warning := check_sizes(cfg, data):
        print_note(warning)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a training is ended in order by either
    try:
        summary = compute(cfg, data, request, CellStore(folder), device, Progress(print_note))
    except KeyboardInterrupt:
        kept = f"{folder} keeps what is done, and a training its newest checkpoint"
        print_note(f"interrupted; {kept}; go on with: {shlex.join(['esper-daemon', *sys.argv[1:]])}")
        raise SystemExit(INTERRUPTED_EXIT) from None
    _show(summary, html, as_json)


def _load_configuration(
    preset: str | None, file: Path | None, sets: tuple[str, ...], episodes: int, *, has_tasks: bool
) -> settings.SourcedConfig:
    """Load the configuration of a training of `episodes` episodes, whose rounds follow from its envs.

    Raises:
        ConfigError: a source is wrong, or `--set` gives one of `UNUSED`; those of a preset or a file, which
            are for runs as well, give way.
    """
    _refuse_unused(sets)
    varied = ("policy.kind", "policy.learn", *(("task.mixture",) if has_tasks else ()))

    def load(rounds: int) -> settings.SourcedConfig:
        chosen = (*sets, f"rounds={rounds}")
        return settings.load_sourced(preset=preset, file=file, environ=os.environ, sets=chosen, varied=varied)

    envs = load(episodes).config.envs.count
    sourced = load(-(-episodes // envs))
    for key, value in TRAINED.items():
        sourced = sourced.with_value(key, value, "compare")
    return sourced


def _refuse_unused(sets: tuple[str, ...]) -> None:
    for item in sets:
        key = item.partition("=")[0].strip()
        reason = UNUSED.get(key) or UNUSED.get(key.partition(".")[0])
        if key in settings.OPTIONS and reason is not None:
            raise settings.ConfigError(f"--set {item}: {reason}; leave it out")


def _show(summary: dict[str, Any], html: Path | None, as_json: bool) -> None:
    """Write the page, where one is asked for, and print the figures."""
    if html is not None:
        write_atomically(html, render_page(summary).encode())
    if as_json:
        print_json(summary)
    else:
        print_lines(format_summary(summary))
        if html is not None:
            print_lines(["", f"page: {html}"])


def format_summary(summary: dict[str, Any]) -> list[str]:
    """The tables, a title before each."""
    lines = []
    for table in make_tables(summary):
        last = len(table.header) - table.is_worded
        lines += [table.title, "", *format_table(table.header, table.rows, right_aligned=range(1, last)), ""]
    return [*lines, f"Intervals: {summary['method']}."]
