"""`esper-daemon queue`: trainings that wait for their turn on this machine, and who works them off."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT, NameTaken
from esper_overwatch.protocol.runs import check_name, was_trained
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.daemon.systemd import render_queue_unit
from esper_overwatch.trainer.queue.entries import ENDED, Entry, EntryQueue
from esper_overwatch.trainer.queue.runner import QueueRunner

from .compare import compare
from .options import JSON
from .output import format_table, print_json, print_lines, print_note
from .start import check_options, start
from .sweep import read_search, sweep

SHOWN_ENDED = 10
_COMMANDS: Mapping[str, click.Command] = {"start": start, "sweep": sweep, "compare": compare}
_FAILED_EXIT = 7


@click.group()
def queue() -> None:
    """Trainings that begin one after another, or some at once, and go on after a crash or a reboot.

    `queue add start NAME …` takes what `esper-daemon start` takes; `sweep` and `compare` can wait, too.
    """


@queue.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--first", is_flag=True, help="Before all that wait, in place of behind them.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGS]...")
def add(words: tuple[str, ...], first: bool) -> None:
    """Add a command, checked now: start NAME, sweep or compare, with its options.

    Options in the environment and the folder that it is in go with it.
    """
    if not words or words[0] not in _COMMANDS:
        raise click.UsageError("give what is to be trained, as: esper-daemon queue add start NAME --set …")
    with _COMMANDS[words[0]].make_context(words[0], list(words[1:])) as context:
        name, command = _check(context, words)
    options = settings.variables() - settings.NOT_OPTIONS
    environment = {key: value for key, value in os.environ.items() if key in options}
    queue_ = EntryQueue()
    entry = queue_.add(name, command, Path.cwd(), environment, first=first)
    before = [one for one in queue_.entries() if one.ended is None and one.number != entry.number]
    before = [one for one in before if one.state == "running" or one.place < entry.place]
    print_lines([f"entry {entry.number}: {name}, {len(before)} before it"])


@queue.command("list")
@click.option("--all", "everything", is_flag=True, help=f"All ended ones, too, not only {SHOWN_ENDED}.")
@JSON
def list_entries(everything: bool, as_json: bool) -> None:
    """List what runs, what waits, in its order, and what has ended, the newest first."""
    entries = EntryQueue().entries()
    ended = [entry for entry in entries if entry.state in ENDED]
    shown = entries if everything else entries[: len(entries) - len(ended) + SHOWN_ENDED]
    if as_json:
        print_json(msgspec.to_builtins(shown))
        return
    header = ["entry", "name", "state", "device", "since", "command"]
    print_lines(format_table(header, [_row(entry) for entry in shown]))


@queue.command()
@click.argument("which", metavar="ENTRY")
@click.argument("place", type=click.IntRange(min=1))
def move(which: str, place: int) -> None:
    """Give ENTRY, a number or a name, the place PLACE among those that wait: 1 is the next."""
    queue_ = EntryQueue()
    queue_.move(queue_.find(which), place)


@queue.command()
@click.argument("which", nargs=-1, required=True, metavar="ENTRY...")
def cancel(which: Sequence[str]) -> None:
    """Take entries out of the queue; one that runs ends with a checkpoint."""
    queue_ = EntryQueue()
    for entry in [queue_.find(each) for each in which]:
        queue_.cancel(entry)
        print_lines([f"entry {entry.number}: {entry.name} {_end_of(entry)}"])


_JOBS = click.option(
    "--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="At once, on each device."
)
_DEVICE = click.option(
    "--device", "devices", multiple=True, help="cuda:0, cpu …; give it for each; default: as entries say."
)


@queue.command()
@_JOBS
@_DEVICE
@click.option("--stay", is_flag=True, help="Wait for further entries when none is left.")
def run(jobs: int, devices: tuple[str, ...], stay: bool) -> None:
    """Work the queue off. Ctrl-C ends what runs, with checkpoints; the next `queue run` goes on with it.

    What ends unexpectedly is tried again from its newest checkpoint, three times in a row at most. Exit code
    7: an entry has failed.
    """
    places = [device for device in _checked(devices) or (None,) for _ in range(jobs)]
    runner = QueueRunner(EntryQueue(), places, print_note)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: runner.interrupt())
    if not runner.run(stays=stay):
        raise SystemExit(INTERRUPTED_EXIT)
    if runner.failed:
        raise SystemExit(_FAILED_EXIT)


@queue.command()
@_JOBS
@_DEVICE
def systemd(jobs: int, devices: tuple[str, ...]) -> None:
    """Print a systemd user unit that works the queue off, over crashes and reboots."""
    given = ["--jobs", str(jobs), *(word for device in _checked(devices) for word in ("--device", device))]
    print_lines(render_queue_unit(given).splitlines())


def _checked(devices: tuple[str, ...]) -> tuple[str, ...]:
    for device in devices:
        settings.convert("device", device, "--device")
    return devices


def _check(context: click.Context, words: Sequence[str]) -> tuple[str, list[str]]:
    """Name of an entry, and its command line.

    Raises:
        UsageError: it cannot wait.
        ConfigError: an option is wrong, or a sweep's space is.
        NameTaken: the run is there already.
    """
    options: dict[str, Any] = context.params
    command = list(words)
    if words[0] == "start":
        name = options["name"]
        if name is None or options["detach"]:
            raise click.UsageError("a queued start has the run's NAME, and no --resume or --detach")
        check_name(name)
        if not options["or_resume"]:
            if was_trained(name):
                raise NameTaken(f"there is a run {name} already; --or-resume goes on with it")
            command.insert(2 if words[1] == name else 1, "--or-resume")
        check_options(options)
        return name, command
    if words[0] == "sweep" and (context.invoked_subcommand or options["space_file"] is None):
        raise click.UsageError("a queued sweep has --space FILE")
    folder = options["folder"]
    name = options.get("name") or (folder.name if folder else words[0])
    if words[0] == "sweep":
        read_search(options)
        name = options["name"] or options["space_file"].stem
    return str(name), command


def _row(entry: Entry) -> list[str]:
    since = entry.ended or (entry.begun if entry.state == "running" else entry.added) or entry.added
    when = datetime.fromtimestamp(since / 1e6).strftime("%m-%d %H:%M")
    command = shlex.join(entry.words)
    why = f"  ({entry.reason})" if entry.reason else ""
    state = "ending" if entry.state == "running" and entry.is_cancelled else entry.state
    return [str(entry.number), entry.name, state, entry.device or "--", when, command + why]


def _end_of(entry: Entry) -> str:
    """What a cancellation means for an entry."""
    if entry.ended is not None:
        return f"has ended already: {entry.state}"
    return "is ended by `queue run`" if entry.state == "running" else "is cancelled"
