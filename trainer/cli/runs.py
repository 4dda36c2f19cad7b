"""Commands on runs as a set: listed, found, tagged, renamed, put away and brought back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any, NoReturn

import click
import msgspec

from esper_overwatch.protocol.catalogue.about import RunAbout, edit_about
from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.catalogue.entry import RunEntry
from esper_overwatch.protocol.catalogue.moves import (
    ARCHIVE,
    TRASH,
    TRASH_DAYS,
    bring_back,
    empty_trash,
    list_put_away,
    put_away,
    rename_run,
)
from esper_overwatch.protocol.catalogue.selection import COLUMNS, BadSelection, Selection
from esper_overwatch.protocol.errors import RunNotFound
from esper_overwatch.protocol.runs import RunInfo, ended_text, find_run

from .options import JSON, REQUIRED_RUN
from .output import format_table, print_json, print_lines
from .run_argument import CommandAfterRun, RunArgument, host_option
from .tables import table_lines

_THERE = "The runs of another machine, through OpenSSH."
MAX_TRASH_DAYS = 36_500.0
LOOK_SECONDS, BEAT_SECONDS = 2.0, 1.0
"""Of `list --follow`: between two looks, and the longest time without a line."""
_SHOWN = ("name", "kind", "state", "created", "tags")
"""Columns of `runs` where none are named; those of `--where` and `--sort` follow."""


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="List ended runs, too.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="With --json: go on with what changes, a line each, and an empty object each second.",
)
@host_option("List the runs of another machine, through OpenSSH.")
@JSON
def list_command(everything: bool, follow: bool, as_json: bool) -> None:
    """List the runs on this machine that live; `runs` shows all, and finds some among many."""
    if follow and not as_json:
        raise click.UsageError("--follow goes with --json; esper-tui shows a live list")
    catalogue = Catalogue()
    if follow:
        _follow(catalogue, everything=everything)
    known = catalogue.entries()
    shown = [entry for entry in known if everything or entry.live]
    if as_json:
        print_json([_row(catalogue, entry) for entry in shown])
        return
    if not shown:
        print_lines([f"no live run; start one with: esper-daemon start --detach{ended_text(len(known))}"])
        return
    for entry in shown:
        life = "live" if entry.live else "ended"
        state = f"{entry.state or '--':<10}"
        who = f"by {entry.stopped_by}" if entry.stopped_by else f"pid {entry.pid or '--'}"
        damage = f"  damaged: {entry.damage}" if entry.damage else ""
        print_lines([f"{entry.id}  {entry.name:<24} {entry.kind:<10} {life:<6} {state} {who}{damage}"])


def _follow(catalogue: Catalogue, *, everything: bool) -> NoReturn:
    """Print the rows that have changed and the names of runs that are gone, until nobody reads them.

    The looks have a thread of their own, so that one that takes long does not look like a machine that died.
    """

    def look(pause: float) -> dict[str, dict[str, Any]]:
        time.sleep(pause)
        shown = [entry for entry in catalogue.entries() if everything or entry.live]
        return {entry.name: _row(catalogue, entry) for entry in shown}

    pool, known = ThreadPoolExecutor(1, "esper-list"), dict[str, dict[str, Any]]()
    looking = pool.submit(look, 0.0)
    while True:
        changes: dict[str, Any] = {}
        if wait([looking], BEAT_SECONDS).done:
            before, known = known, looking.result()
            changes["runs"] = [row for name, row in known.items() if row != before.get(name)]
            changes["gone"] = [name for name in before if name not in known]
            looking = pool.submit(look, LOOK_SECONDS)
        print_json(changes)


def _row(catalogue: Catalogue, entry: RunEntry) -> dict[str, Any]:
    run = catalogue.live.get(entry.name)
    connection = None if run is None else run.connection
    return {
        "name": entry.name,
        "id": entry.id,
        "kind": entry.kind,
        "live": entry.live,
        "state": entry.state,
        "stopped_by": entry.stopped_by,
        "pid": entry.pid,
        "path": str(catalogue.folder(entry)),
        "created": entry.created,
        "tags": entry.tags,
        "project": entry.project,
        "boot": connection and connection.boot,
        "overview": entry.overview and msgspec.to_builtins(entry.overview),
        "damage": entry.damage,
        "endpoints": connection and connection.endpoints,
    }


@click.command()
@click.option(
    "--where",
    metavar="SQL",
    help="Only runs for which this holds, such as: config.lr < 0.01 AND 'baseline' IN tags",
)
@click.option(
    "--columns",
    metavar="A,B",
    help=f"What to show: {', '.join(COLUMNS)}, config.OPTION, summary.NAME.",
)
@click.option("--sort", metavar="COLUMN", help='Order by this one; "COLUMN DESC", the largest first.')
@click.option("--rebuild", is_flag=True, help="Read every run again, whatever the catalogue has kept.")
@host_option(_THERE)
@JSON
def runs(where: str | None, columns: str | None, sort: str | None, rebuild: bool, as_json: bool) -> None:
    """List runs, live and ended, the newest first: all, or those that meet a condition in SQL (SQLite).

    Options are config.NAME, as in config.ppo.clip; last values summary.NAME, or summary."train/loss".
    """
    catalogue = Catalogue()
    if rebuild:
        number = catalogue.rebuild()
        if not (where or columns or sort or as_json):
            print_lines([f"read {number} run{'' if number == 1 else 's'} again"])
            return
    selection = Selection(where=where or "", sort=sort or "")
    if columns is not None:
        shown = _split(columns)
    else:
        shown = [*(COLUMNS if as_json else _SHOWN), *(() if as_json else selection.values())]
    table = catalogue.select(msgspec.structs.replace(selection, columns=tuple(shown)))
    if as_json:
        print_json([dict(zip(table.columns, row, strict=True)) for row in table.rows])
    else:
        print_lines(table_lines(table.columns, [tuple(map(_text, row)) for row in table.rows]))


def _split(columns: str) -> list[str]:
    """Columns between commas; a comma in quotes or brackets is part of one.

    Raises:
        BadSelection: there is none.
    """
    parts, depth, quote = [""], 0, ""
    for character in columns:
        if character in "'\"":
            quote = "" if character == quote else quote or character
        depth += 0 if quote else (character in "([") - (character in ")]")
        if character == "," and not quote and not depth:
            parts.append("")
        else:
            parts[-1] += character
    named = [part.strip() for part in parts if part.strip()]
    if not named:
        raise BadSelection(f"--columns {columns!r} names none")
    return named


def _text(value: Any) -> Any:
    """A cell for people: lists without brackets, flags as words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else value


@click.command(
    cls=CommandAfterRun,  # `-h` takes the tag h away
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@REQUIRED_RUN
@click.argument("changes", nargs=-1, metavar="[+TAG | -TAG]...", type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="Put the run into this project; '' takes it out of its one.")
@JSON
def tag(run: RunArgument, changes: tuple[str, ...], project: str | None, as_json: bool) -> None:
    """Give RUN tags (+TAG), or take them away (-TAG), live or ended; print those that it has then."""
    run.run_remotely_if_addressed()
    wrong = [word for word in changes if word[:1] not in ("+", "-") or word[:2] in ("+", "-", "--")]
    if wrong:
        raise click.UsageError(f"{wrong[0]!r} is no change of tags; write +TAG or -TAG")
    add, remove = ([word[1:] for word in changes if word[0] == sign] for sign in "+-")

    def change(about: RunAbout) -> RunAbout:
        about = about.tagged(add, remove)
        return about if project is None else msgspec.structs.replace(about, project=project)

    found = find_run(run.address)
    edit_about(found.path, change)
    entry = _entry_of(found)
    if as_json:
        print_json({"name": entry.name, "tags": entry.tags, "project": entry.project})
    else:
        of = f" (project {entry.project})" if entry.project else ""
        print_lines([f"{entry.name}{of}: {', '.join(entry.tags) or 'no tags'}"])


def _entry_of(run: RunInfo) -> RunEntry:
    return next(entry for entry in Catalogue().entries() if entry.name == run.name)


@click.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.argument("text", required=False)
def note(run: RunArgument, text: str | None) -> None:
    """Write TEXT as the note of RUN, live or ended, in place of what it has; without TEXT, print that."""
    run.run_remotely_if_addressed()
    found = find_run(run.address)
    if text is None:
        print_lines(_entry_of(found).notes.splitlines())
    else:
        edit_about(found.path, lambda about: msgspec.structs.replace(about, notes=text))


@click.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.argument("name", metavar="NEW")
def rename(run: RunArgument, name: str) -> None:
    """Give the ended RUN the name NEW."""
    run.run_remotely_if_addressed()
    found = _find_exactly(run.address or "")
    rename_run(found, name)
    print_lines([f"{found.name} is {name}"])


def _find_exactly(name: str) -> RunInfo:
    """The run of this name or id; the beginning of one is too little for what moves a run."""
    run = find_run(name)
    if name not in (run.name, run.id):
        raise RunNotFound(f"no run {name}; type the whole name: {run.name}")
    return run


def _put_away(place: str, names: Sequence[str]) -> None:
    """Move runs that are all found first, so that a mistyped name moves none."""
    found = {run.path: run for run in map(_find_exactly, names)}
    for run in found.values():
        put_away(run, place)
        print_lines([f"{run.name} is in the {place}; to bring it back: esper-daemon restore {run.name}"])


@click.command()
@click.argument("names", nargs=-1, metavar="RUN...")
@click.option(
    "--older-than",
    type=float,
    default=TRASH_DAYS,
    show_default=True,
    metavar="DAYS",
    help="Delete for good what has been in the trash for longer.",
)
@host_option(_THERE)
def rm(names: tuple[str, ...], older_than: float) -> None:
    """Move ended runs to the trash; of what lies there, delete for good what has been there for long.

    Without RUN only the latter.
    """
    if not 0 <= older_than <= MAX_TRASH_DAYS:  # click's ranges let NaN pass
        raise click.UsageError(
            f"--older-than: {older_than} is not a number of days from 0 to {MAX_TRASH_DAYS:.0f}"
        )
    _put_away(TRASH, names)
    for one in empty_trash(older_than):
        print_lines([f"deleted {one.name}, in the trash since {_day(one.since)}"])


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...")
@host_option(_THERE)
def archive(names: tuple[str, ...]) -> None:
    """Move ended runs to the archive, out of all lists, until `restore` brings them back."""
    _put_away(ARCHIVE, names)


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@host_option(_THERE)
def restore(names: tuple[str, ...]) -> None:
    """Bring runs back from the archive or the trash; without RUN, list what is there."""
    if not names:
        rows = [[one.name, one.place, _day(one.since)] for one in list_put_away()]
        print_lines(
            format_table(["name", "in the", "since"], rows) if rows else ["archive and trash are empty"]
        )
    for name in names:
        bring_back(name)
        print_lines([f"{name} is back"])


def _day(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, tz=UTC).astimezone().isoformat(sep=" ", timespec="minutes")


COMMANDS: tuple[click.Command, ...] = (list_command, runs, tag, note, rename, rm, archive, restore)
