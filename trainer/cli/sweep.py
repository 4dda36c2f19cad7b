"""`esper-daemon sweep`: search options with Optuna, every trial a run; and look at what was found."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT
from esper_overwatch.protocol.runs import check_name
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.sweep.space import Dimension, Objective, SpaceError, read_space

from .options import JSON, config_options
from .output import format_table, print_json, print_lines, print_note

if TYPE_CHECKING:
    from esper_overwatch.trainer.sweep.study import SweepStudy


@click.group(invoke_without_command=True)
@config_options
@click.option(
    "--space",
    "space_file",
    type=click.Path(path_type=Path),
    help="TOML file: an option's name to {low, high}, {low, high, log}, {low, high, step} or {choices}.",
)
@click.option("--name", help="Name of the sweep; its runs are NAME-1, NAME-2 …; default: that of the space.")
@click.option("--trials", type=click.IntRange(min=1), default=20, show_default=True, help="Trials in all.")
@click.option(
    "--objective",
    type=click.Choice(["return", "test_accuracy"]),
    default="return",
    show_default=True,
    help="Mean over the held-out hosts that trials are compared by.",
)
@click.option(
    "--startup",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Finished trials before one is pruned.",
)
@click.option(
    "--draw-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of what is drawn."
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the sweep; default: sweeps/NAME beside the runs.",
)
@JSON
@click.pass_context
def sweep(
    context: click.Context,
    preset: str | None,
    file: Path | None,
    sets: tuple[str, ...],
    space_file: Path | None,
    name: str | None,
    trials: int,
    objective: Objective,
    startup: int,
    draw_seed: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Search options: every trial is a run, judged by its evaluations on held-out hosts.

    --preset, --config and --set are for all trials; rounds and evaluation.rounds must be set. A trial whose
    best value is below the median of the finished ones is pruned. Ctrl-C ends it; the same command goes on.
    """
    if context.invoked_subcommand is not None:
        return
    if space_file is None:
        raise click.UsageError("give --space FILE, or: sweep show NAME")
    name = name or space_file.stem
    check_name(f"{name}-{trials}")
    space, cfg = read_search(context.params)
    from esper_overwatch.trainer.sweep.study import SweepStudy, SweepTerms, sweeps_folder
    from esper_overwatch.trainer.sweep.sweep import Sweep

    terms = SweepTerms(space, objective, startup, draw_seed, msgspec.to_builtins(cfg))
    study = SweepStudy.create(folder or sweeps_folder() / name, name, terms)
    given = [("--preset", preset), ("--config", file and file.resolve())]
    words = [word for option, value in given if value is not None for word in (option, str(value))]
    search = Sweep(study, terms, words, sets, cfg.rounds, print_note)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: search.interrupt())
    if not search.run(trials):
        kept = f"{study.folder} keeps the trials, and the run of the last one its newest checkpoint"
        print_note(f"interrupted; {kept}; go on with: {shlex.join(['esper-daemon', *sys.argv[1:]])}")
        raise SystemExit(INTERRUPTED_EXIT)
    _print_summary(study, as_json)


@sweep.command()
@click.argument("which", metavar="NAME|FOLDER")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw evaluations by round and values by option into FILE.png, FILE.svg or FILE.pdf.",
)
@JSON
def show(which: str, plot: Path | None, as_json: bool) -> None:
    """Print the trials of a sweep, running or not, and the best."""
    study = _find(which)
    if plot is not None:
        from esper_overwatch.trainer.sweep.figure import check_plot_file, write_plot
        from esper_overwatch.trainer.sweep.summary import summarise

        check_plot_file(plot)
        write_plot(summarise(study), plot)
    _print_summary(study, as_json)


def _find(which: str) -> SweepStudy:
    from esper_overwatch.trainer.sweep.study import SweepStudy, sweeps_folder

    folder = Path(which).expanduser()
    named = sweeps_folder() / which
    return SweepStudy.open(folder if folder.is_dir() and not named.is_dir() else named)


def read_search(options: Mapping[str, Any]) -> tuple[tuple[Dimension, ...], Config]:
    """The space of a sweep's options, and what all trials have; ends the program where the space is wrong.

    Raises:
        ConfigError: an option of all trials is wrong, or trials would have no end or no value.
    """
    sets = options["sets"]
    try:
        space = read_space(
            options["space_file"], options["objective"], [item.partition("=")[0].strip() for item in sets]
        )
    except SpaceError as error:
        print_lines([f"esper-daemon: {problem}" for problem in error.problems], to_stderr=True)
        raise SystemExit(error.exit_code) from None
    cfg = settings.load_sourced(
        preset=options["preset"],
        file=options["file"],
        environ=os.environ,
        sets=sets,
        varied=[one.key for one in space],
    ).config
    _check_evaluations(cfg)
    return space, cfg


def _check_evaluations(cfg: Config) -> None:
    """Raises ConfigError where trials would have no end or no value."""
    every = cfg.evaluation.rounds
    if every == 0:
        raise settings.ConfigError(
            "evaluation.rounds = 0: trials are judged by evaluations; set it, as --set evaluation.rounds=10"
        )
    if cfg.rounds < every:
        what = "trials train without end" if cfg.rounds == 0 else "trials end before they are evaluated"
        raise settings.ConfigError(
            f"rounds = {cfg.rounds}: {what}; evaluation.rounds = {every}, so set rounds to {every} or more"
        )


def _print_summary(study: SweepStudy, as_json: bool) -> None:
    from esper_overwatch.trainer.sweep.summary import best_line, make_rows, summarise

    summary: dict[str, Any] = summarise(study)
    if as_json:
        print_json(summary)
        return
    header, rows = make_rows(summary)
    print_lines(
        [*format_table(header, rows, right_aligned=range(2, len(header) - 1)), "", best_line(summary)]
    )
