"""`esper-daemon replay`: a range of a run's events, out of all its segments."""

from __future__ import annotations

import click

from protocol.errors import RequestError
from protocol.history import Wanted, oldest_numbers, read
from protocol.runs import find_run

from .tailing import format_event


def replay_run(run: str | None, wanted: Wanted, types: tuple[str, ...], *, as_json: bool) -> None:
    """Print the wanted events in the order written.

    Raises:
        RunNotFound: no such run.
        RequestError: `range_gone`, retention has taken the beginning of it; the message names the oldest.
        FolderError: the journal cannot be read.
        WireError: it is damaged; says where.
    """
    journal = find_run(run).path / "events.jsonl"
    oldest = oldest_numbers(journal).get(wanted.stream or "", 1)
    if wanted.first < oldest and (wanted.last or oldest) < oldest:
        raise RequestError(
            "range_gone",
            f"{wanted.stream} {wanted.first}..{wanted.last} is no longer held; the oldest is {oldest}",
            {"oldest": oldest},
        )
    if 1 < wanted.first < oldest:
        click.echo(f"esper-daemon: {wanted.stream} before {oldest} is no longer held", err=True)
    for event in read(journal, wanted=wanted):
        if not types or event.type in types:
            click.echo(event.line.decode() if as_json else format_event(event))
