"""`esper-daemon replay`: a range of a run's events, out of all its segments."""

from __future__ import annotations

from contextlib import closing

import click

from protocol.errors import RequestError
from protocol.history import Wanted

from .tailing import format_event
from .telling import teller_of


def replay_run(run: str | None, wanted: Wanted, types: tuple[str, ...], *, as_json: bool) -> None:
    """Print the wanted events in the order written.

    Raises:
        RunNotFound: no such run.
        RequestError: `range_gone`, retention has taken the beginning of it; the message names the oldest.
        FolderError: the journal cannot be read.
        WireError: it is damaged; says where.
    """
    with closing(teller_of(run)) as teller:
        stream, first, last = wanted.stream, wanted.first, wanted.last
        oldest = 1 if stream is None else teller.oldest(stream)
        if first < oldest and (last or oldest) < oldest:
            raise RequestError(
                "range_gone",
                f"{stream} {first}..{last} is no longer held; the oldest is {oldest}",
                {"oldest": oldest},
            )
        if 1 < first < oldest:
            click.echo(f"esper-daemon: {stream} before {oldest} is no longer held", err=True)
        for event in teller.read(wanted):
            if not types or event.type in types:
                click.echo(event.line.decode() if as_json else format_event(event))
