"""`esper-daemon tail`: a run's events as lines, those that are written and then live."""

from __future__ import annotations

import time
from contextlib import closing

import click

from protocol.events import STREAMS, Anomaly, Severity
from protocol.items import LinkChanged
from protocol.subscriber import Subscriber
from protocol.wire import Event, WireError, decode_line

from .telling import teller_of

QUIET_S = 1.0
"""After so long without an event a follower looks whether the run is still there."""
_COLOUR: dict[Severity, str | None] = {"info": None, "warning": "yellow", "critical": "red"}


def format_event(event: Event) -> str:
    """One event as one line of text: time, clock, type, the fields that are not columns."""
    fields = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in vars(event.data).items()
        if value is not None and not isinstance(value, list | dict)
    )
    clock = time.strftime("%H:%M:%S", time.localtime(event.ts / 1e6))
    env = "" if event.ctx.env is None else f" env{event.ctx.env:02d}"
    return f"{clock} r{event.ctx.round} e{event.ctx.epoch:<3}{env} {event.type} {fields}"


def _decoded(line: bytes) -> Event | None:
    try:
        return decode_line(line)
    except WireError:
        return None


def tail_run(run: str | None, *, follow: bool, lines: int, types: tuple[str, ...], as_json: bool) -> None:
    """Print the last `lines` events; with `follow`, the live ones after them, also of the run's next boots.

    Raises:
        RunNotFound: no such run, or not any more.
    """

    def show(event: Event) -> None:
        text = event.line.decode() if as_json else format_event(event)
        severity = event.data.severity if isinstance(event.data, Anomaly) else "info"
        click.secho(text, fg=None if as_json else _COLOUR[severity])

    def wanted(event: Event) -> bool:
        return not types or event.type in types

    kept: list[Event] = []
    with closing(teller_of(run)) as teller:
        last_seen = dict(teller.last)
        for stream, seq, line in teller.newest_first():
            if len(kept) >= lines and (not follow or len(last_seen) == len(STREAMS)):
                break
            last_seen.setdefault(stream, seq)
            event = _decoded(line) if len(kept) < lines else None
            if event is not None and wanted(event):
                kept.append(event)
    for event in reversed(kept):
        show(event)
    if not follow:
        return
    with Subscriber(teller.name, client="esper-daemon tail") as subscriber:
        while subscriber.state != "ended":
            for item in subscriber.items(QUIET_S):
                if isinstance(item, LinkChanged) and item.state == "lost":
                    why = subscriber.problem or "gone"
                    click.echo(f"{teller.name}: {why}; waiting for its next word", err=True)
                elif isinstance(item, Event) and item.seq > last_seen.get(item.stream, 0) and wanted(item):
                    show(item)
            teller.check()
