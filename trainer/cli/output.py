"""Output of commands: all that is printed here is fit for a terminal. No other module of `cli` prints."""

from __future__ import annotations

import errno
import json
import select
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.command_line import (
    check_arguments,
    check_working_directory,
    exit_on_error,
    open_standard_files,
)
from esper_overwatch.protocol.codec.readable import format_result
from esper_overwatch.protocol.codec.text import clean_text, escape_json
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.journal.damage import DamageReport

from .run_argument import RunArgument

PROGRAM = "esper-daemon"
"""A group of values that is longer than this has a line for each."""


class ErrorGroup(click.Group):
    """Turns errors of its commands into one line and an exit code."""

    in_folder: frozenset[str | None] = frozenset()
    """Names of the commands that need a working directory."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with exit_on_error(PROGRAM):
            check_arguments(args)
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.in_folder:
            check_working_directory()
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        open_standard_files()
        with exit_on_error(PROGRAM):
            return super().invoke(ctx)


def request(call: Callable[[Client], dict[str, Any]], run: RunArgument, as_json: bool) -> None:
    """Connect to the run, call, print the result."""
    with run.connect() as client:
        print_result(call(client), as_json)


def print_lines(lines: Iterable[str], *, colour: str | None = None, to_stderr: bool = False) -> None:
    """Print each text as one line, whatever is in it."""
    for line in lines:
        text = clean_text(line)
        click.echo(click.style(text, fg=colour) if colour else text, err=to_stderr)


def print_note(text: str) -> None:
    """Print one line on standard error, under the program's name."""
    print_lines([f"{PROGRAM}: {text}"], to_stderr=True)


def wait_while_read(seconds: float) -> None:
    """Pause; shorter, where the reader of standard output leaves: a program that prints seldom has to look.

    Raises:
        BrokenPipeError: the reader has left.
    """
    look = select.poll()
    look.register(sys.stdout, 0)
    if look.poll(1000 * seconds):
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")


def exit_on_damage(report: DamageReport | Mapping[str, DamageReport]) -> None:
    """Say what damaged journals have lost, and exit with the code for that; of undamaged ones nothing.

    Args:
        report: of one journal, or of several by their runs' names.
    """
    reports = {"": report} if isinstance(report, DamageReport) else report
    for run, one in reports.items():
        for line in one.lines:
            print_note(f"{run}: {line}" if run else line)
    if any(one.num_places for one in reports.values()):
        raise SystemExit(WireError.exit_code)


def print_json(value: Any, *, sort_keys: bool = False) -> None:
    """Print a value as one line of JSON."""
    print_json_text(json.dumps(value, sort_keys=sort_keys, default=str))


def print_json_text(document: bytes | str) -> None:
    """Print JSON that somebody else has written; bytes are UTF-8."""
    text = document if isinstance(document, str) else document.decode(errors="replace")
    click.echo(escape_json(text))


def print_result(value: dict[str, Any], as_json: bool) -> None:
    """Print a result as one line of JSON, or a key and a value per line, what is nested in indented lines."""
    if as_json:
        print_json(value, sort_keys=True)
        return
    print_lines(format_result(value))


def print_table(rows: list[dict[str, Any]], columns: dict[str, int], as_json: bool) -> None:
    """Print rows as JSON or in columns.

    Args:
        columns: names of the fields that are shown, and the least width of each.
    """
    if as_json:
        print_json(rows, sort_keys=True)
        return
    cells = [["--" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    print_lines(format_table(list(columns), cells, min_widths=list(columns.values())))


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    min_widths: Sequence[int] = (),
    right_aligned: Collection[int] = (),
) -> list[str]:
    """Lines of aligned columns; cells are cleaned, so that one cannot be a row of its own.

    Args:
        header: their names.
        rows: of as many cells.
        min_widths: the least width of each; none = as wide as its cells.
        right_aligned: indices of the columns whose cells end at the right.
    """
    header, rows = _clean(header), [_clean(row) for row in rows]
    least = min_widths or [0] * len(header)
    widths = [max(*map(len, column), width) for *column, width in zip(header, *rows, least, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            text.rjust(width) if i in right_aligned else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _clean(row: Sequence[str]) -> list[str]:
    return [clean_text(cell) for cell in row]
