"""`esper-daemon diff`: in what two runs differ."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click
import msgspec

from esper_overwatch.protocol.catalogue.run_facts import RunFacts, read_run_facts
from esper_overwatch.protocol.codec.json_lines import plain
from esper_overwatch.protocol.errors import RunNotFound
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.trainer.query.run_difference import Difference, RunDifference, compare_runs

from .options import JSON
from .output import print_json, print_lines, print_note
from .run_argument import host_option

ABSENT = "--"
"""In place of a value that a run does not have."""


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="OTHER")
@host_option("Both are runs of another machine, through OpenSSH.")
@JSON
def diff(first: str, second: str, as_json: bool) -> None:
    """Name what differs between RUN and OTHER: configuration, code, packages, environment, results.

    What is equal is left out. Of a run that was resumed, its newest boot counts.
    """
    found = compare_runs(_facts(first), _facts(second))
    if as_json:
        print_json(plain(msgspec.to_builtins(found)))
        return
    for note in found.notes:
        print_note(note)
    print_lines(_lines(found))


def _facts(name: str) -> RunFacts:
    if "://" in name:
        raise RunNotFound(f"diff reads the runs' files, which {name} does not lead to; use --ssh")
    return read_run_facts(find_run(name))


def _lines(found: RunDifference) -> Iterator[str]:
    if not found.differences:
        but = " in what could be compared" if found.notes else ""
        yield f"{found.a} and {found.b} do not differ{but}"
        return
    yield f"{found.a} -> {found.b}"
    for section, differences in groupby(found.differences, key=lambda one: one.section):
        yield f"{section}:"
        for one in differences:
            texts = [_text(one, value) for value in (one.a, one.b)]
            if texts[0] == texts[1]:  # numbers that are nearly the same
                texts = [str(one.a), str(one.b)]
            yield f"  {one.name}: {' -> '.join(texts)}"


def _text(difference: Difference, value: Any) -> str:
    """A value in words; of changes of a file, how many lines."""
    if value is None or value == "":
        return ABSENT
    if difference.section == "code" and isinstance(value, list):
        changes = [line for line in value if not line.startswith(("+++", "---"))]
        return " ".join(f"{sign}{sum(line.startswith(sign) for line in changes)}" for sign in "+-")
    if difference.section == "command line" and isinstance(value, list):
        return shlex.join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, str | int) else str(plain(value))
