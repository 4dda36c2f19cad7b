"""Commands that start a run, or show what it can be started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.alerts.rules import read_rules
from esper_overwatch.protocol.client.command_line import check_arguments
from esper_overwatch.protocol.errors import BadName
from esper_overwatch.protocol.runs import check_name, find_run, was_trained
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config import presets
from esper_overwatch.trainer.config.first_options import FIRST_OPTIONS

from .options import JSON, config_options
from .output import format_table, print_json, print_lines, print_note


@click.command()
@click.argument("name", required=False)
@config_options
@click.option("--resume", metavar="NAME", help="Resume a run from its newest checkpoint.")
@click.option(
    "--checkpoint",
    metavar="WHICH",
    help="Resume from this one: best, a tag, or a file; `checkpoints` lists them.",
)
@click.option(
    "--fork",
    metavar="RUN[@WHICH]",
    help="Begin with a checkpoint of another run, under other options: its newest, or of a round, best, a "
    "tag, a file.",
)
@click.option(
    "--or-resume",
    is_flag=True,
    help="Resume NAME where it has been trained before, skipping damaged checkpoints.",
)
@click.option("--rounds", metavar="N", help="Number of rounds to train (short for --set rounds=N).")
@click.option("--seed", metavar="N", help="Seed of every random generator (short for --set seed=N).")
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (short for --set device=…).")
@click.option("--profile", metavar="N", help="Record the end of the Nth round (--set profiler.rounds=N).")
@click.option(
    "--policy",
    metavar="FILE",
    help="Begin with this policy, which `policy export` wrote (short for --set policy.file=FILE).",
)
@click.option("--no-learn", is_flag=True, help="Leave the policy as it is (--set policy.learn=false).")
@click.option(
    "--greedy",
    is_flag=True,
    help="Draw no actions: take an op as soon as it would more probably than not have been drawn "
    "(--set policy.greedy=true); goes with --no-learn.",
)
@click.option("--detach", is_flag=True, help="Run in the background; return once the run is ready.")
def start(
    name: str | None,
    resume: str | None,
    preset: str | None,
    or_resume: bool,
    checkpoint: str | None,
    fork: str | None,
    file: Path | None,
    sets: tuple[str, ...],
    rounds: str | None,
    seed: str | None,
    device: str | None,
    profile: str | None,
    policy: str | None,
    no_learn: bool,
    greedy: bool,
    detach: bool,
) -> None:
    """Train a run; NAME is its name (generated where it is missing)."""
    _check_run_names(name, resume=resume, fork=fork)
    _check_usage(name, resume, checkpoint, or_resume=or_resume)
    if fork is not None and any(one is not None for one in (resume, preset, policy, file)):
        raise click.UsageError("--fork has the other run's options: --set changes them, nothing else does")
    if or_resume and was_trained(name or ""):
        name, resume, fork = None, name, None
    if name is not None:
        check_name(name)  # before torch is loaded
    short = {"rounds": rounds, "seed": seed, "device": device, "profiler.rounds": profile}
    policy = _policy_of_new_run(policy, resume, or_resume=or_resume)
    sets += _as_sets(short | _policy_options(policy, no_learn=no_learn, greedy=greedy))
    _check_before_torch(resume or (fork and fork.partition("@")[0]), preset, file, sets)
    if detach:
        from esper_overwatch.trainer.daemon.background import start_detached

        arguments = [word for word in sys.argv[1:] if word != "--detach"]
        sys.exit(start_detached(arguments))
    from esper_overwatch.trainer.daemon.signals import answer_start_signals, ignore_signals

    answer_start_signals()
    from esper_overwatch.trainer.daemon.daemon import run_daemon
    from esper_overwatch.trainer.daemon.fork import Fork

    try:
        exit_code = run_daemon(
            name=name,
            resume=resume,
            preset=preset,
            file=file,
            sets=sets,
            unattended=or_resume,
            checkpoint=checkpoint,
            fork=None if fork is None else Fork.find(fork, sets),
        )
    finally:
        ignore_signals()
    sys.exit(exit_code)


def check_options(options: Mapping[str, Any]) -> None:
    """Check what `start` was given, as it does when it begins.

    Args:
        options: parameters of the command, by name.

    Raises:
        EsperError: an option, a file or the run that is named is not right.
        UsageError: options do not go together.
    """
    name, fork = options["name"], options["fork"]
    short = {key: options[key] for key in ("rounds", "seed", "device")} | {
        "profiler.rounds": options["profile"]
    }
    chosen = {key: options[key] for key in ("no_learn", "greedy")}
    sets = options["sets"] + _as_sets(short | _policy_options(options["policy"], **chosen))
    resume = name if options["or_resume"] and was_trained(name) else None
    _check_before_torch(resume or (fork and fork.partition("@")[0]), options["preset"], options["file"], sets)


def _as_sets(short: Mapping[str, str | None]) -> tuple[str, ...]:
    """What `--set` would be given, for options of `start` that are short for it."""
    return tuple(f"{key}={value}" for key, value in short.items() if value is not None)


def _check_run_names(name: str | None, **options: str | None) -> None:
    """Refuse an option that stands where a run's name was left out."""
    for option, value in options.items():
        if value is not None and value.startswith("-"):
            run = name if name and option == "resume" else "RUN"
            raise BadName(f"--{option} wants a run, and {value} is none; write: --{option} {run} {value}")


def _check_usage(name: str | None, resume: str | None, checkpoint: str | None, *, or_resume: bool) -> None:
    if name and resume:
        raise click.UsageError("give a NAME for a new run or --resume NAME, not both")
    if checkpoint is not None and resume is None:
        raise click.UsageError("--checkpoint goes with --resume NAME")
    if or_resume and name is None:
        raise click.UsageError("--or-resume needs the run's NAME")


def _check_before_torch(
    resume: str | None, preset: str | None, file: Path | None, sets: tuple[str, ...]
) -> None:
    """Refuse at once what can be refused without the seconds that torch takes to load."""
    if "RANK" in os.environ:
        return  # of torchrun's ranks the first refuses, once all have joined
    if resume is not None:
        find_run(resume)
    else:
        read_rules(settings.load(preset=preset, file=file, environ=os.environ, sets=sets).alerts.file)


def _policy_of_new_run(policy: str | None, resume: str | None, *, or_resume: bool) -> str | None:
    """None where a run is resumed, which has its own; the same command may have begun it, unattended."""
    if policy is None or resume is None:
        return policy
    if not or_resume:
        raise click.UsageError("--policy begins a new run; one that is resumed goes on with its own")
    print_note(f"run {resume} goes on with its own policy, not with {policy}")
    return None


def _policy_options(file: str | None, *, no_learn: bool, greedy: bool) -> dict[str, str | None]:
    """Options that `--policy`, `--no-learn` and `--greedy` set."""
    if greedy and not no_learn:
        raise click.UsageError("--greedy goes with --no-learn")
    return {
        "policy.file": file and str(Path(file).expanduser().absolute()),
        "policy.learn": "false" if no_learn else None,
        "policy.greedy": "true" if greedy else None,
    }


@click.command()
@click.argument("name")
@config_options
def systemd(name: str, preset: str | None, file: Path | None, sets: tuple[str, ...]) -> None:
    """Print a systemd user unit that keeps the run NAME going over crashes and reboots."""
    from esper_overwatch.trainer.daemon.systemd import render_unit

    check_name(name)
    settings.load(preset=preset, file=file, environ=os.environ, sets=sets)
    given = [("--preset", preset), ("--config", file and file.resolve()), *(("--set", one) for one in sets)]
    words = [word for option, value in given if value is not None for word in (option, str(value))]
    check_arguments(words)
    print_lines(render_unit(name, words).splitlines())


@click.command()
@config_options
@click.option("--all", "everything", is_flag=True, help="List every option.")
@click.option("--toml", "as_toml", is_flag=True, help="Print the merged configuration as TOML.")
def options(
    preset: str | None, file: Path | None, sets: tuple[str, ...], everything: bool, as_toml: bool
) -> None:
    """List the options of `start` that matter first, and those that were set.

    Of each: key, value, where it comes from, description, allowed values.
    """
    sourced = settings.load_sourced(preset=preset, file=file, environ=os.environ, sets=sets)
    sourced = _with_task_defaults(sourced)
    if as_toml:
        print_lines(settings.to_toml(sourced.config, sourced.sources).split("\n")[:-1])
        return
    if everything:
        _print_options(sourced, settings.OPTIONS)
        return
    known = set()
    for heading, keys in FIRST_OPTIONS.items():
        print_lines([f"== {heading}"])
        _print_options(sourced, keys)
        known |= set(keys)
    others = [key for key in settings.OPTIONS if key not in known]
    if changed := [key for key in others if sourced.value(key) != settings.OPTIONS[key].default]:
        print_lines(["== set here"])
        _print_options(sourced, changed)
    print_lines([f"{len(others) - len(changed)} more: esper-daemon options --all"])


def _print_options(sourced: settings.SourcedConfig, keys: Iterable[str]) -> None:
    for option in map(settings.OPTIONS.__getitem__, keys):
        value, origin = sourced.value(option.key), sourced.sources[option.key]
        if value != option.default:
            origin += f"; default {option.default}"
        about = f"    {option.description} ({option.allowed}; {option.variable})"
        print_lines([f"{option.key} = {value}  ({origin})", about])


def _with_task_defaults(sourced: settings.SourcedConfig) -> settings.SourcedConfig:
    """Add the task's defaults, where the dataset is known without loading it and torch is installed."""
    try:
        from esper_overwatch.trainer.data.registry import kind_of
        from esper_overwatch.trainer.hosts.task_defaults import resolve_task_defaults
    except ModuleNotFoundError:
        return sourced
    dataset = sourced.config.task.label
    kind = "images" if sourced.config.task.mixture else kind_of(dataset)
    return sourced if kind is None else resolve_task_defaults(sourced, dataset, kind)


@click.command("presets")
@click.argument("names", nargs=-1, metavar="[NAME [OTHER]]")
@click.option("--diff", "as_difference", is_flag=True, help="Print what differs, a line for each option.")
@JSON
def presets_command(names: tuple[str, ...], as_difference: bool, as_json: bool) -> None:
    """List the presets of `start --preset` and what each is for.

    With --diff: the options in which NAME differs from the defaults (without a name: each preset), or OTHER
    from NAME, with what the task of each brings.
    """
    if len(names) > 2 or (names and not as_difference):
        raise click.UsageError("give --diff [NAME [OTHER]], or no name")
    lines = presets.presets()
    if as_difference:
        before, names = (names[0], names[1:]) if len(names) == 2 else (None, names or tuple(lines))
        _print_differences(before, names, as_json)
    elif as_json:
        print_json(lines)
    else:
        print_lines(f"{name:<16} {line}" for name, line in lines.items())


def _print_differences(before: str | None, names: Sequence[str], as_json: bool) -> None:
    """Print each preset's changes, compared with another or with the defaults."""
    first = _with_task_defaults(settings.load_sourced(preset=before))
    rows = []
    for name in names:
        sourced = _with_task_defaults(settings.load_sourced(preset=name))
        for key in settings.OPTIONS:
            value, was = sourced.value(key), first.value(key)
            if value != was:
                origin = sourced.sources[key]
                rows.append({"preset": name, "option": key, "value": value, "was": was, "source": origin})
    if as_json:
        print_json(rows)
        return
    header = ["preset", "option", "value", before or "default", "from"]
    print_lines(format_table(header, [[_as_set(cell) for cell in row.values()] for row in rows]))
    unchanged = [name for name in names if all(row["preset"] != name for row in rows)]
    print_lines(f"{name} changes nothing of {before or 'the defaults'}" for name in unchanged)


def _as_set(value: Any) -> str:
    """Write a value as `--set` takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


COMMANDS: tuple[click.Command, ...] = (start, systemd, options, presets_command)
