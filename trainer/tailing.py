"""`esper-daemon tail`: a run's events as lines, from its journal and then live."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from protocol.events import STREAMS, Anomaly, Severity
from protocol.history import lines_newest_first
from protocol.runs import find_run
from protocol.subscriber import Subscriber
from protocol.wire import LINE_HEAD, Event, WireError, decode_line

_COLOUR: dict[Severity, str | None] = {"info": None, "warning": "yellow", "critical": "red"}


def format_event(event: Event) -> str:
    """One event as one line of text: time, clock, type, the fields that are not columns."""
    data: dict[str, Any] = msgspec.to_builtins(event.data)
    fields = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in data.items()
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
    """Print the last `lines` events of the journal; with `follow`, the live ones after them."""

    def show(event: Event) -> None:
        text = event.line.decode() if as_json else format_event(event)
        severity = event.data.severity if isinstance(event.data, Anomaly) else "info"
        click.secho(text, fg=None if as_json else _COLOUR[severity])

    def wanted(event: Event) -> bool:
        return not types or event.type in types

    info = find_run(run)
    last_seen: dict[str, int] = {}
    kept: list[Event] = []
    for line in lines_newest_first(info.path / "events.jsonl"):
        if len(kept) >= lines and (not follow or len(last_seen) == len(STREAMS)):
            break
        head = LINE_HEAD.match(line)
        if head is not None:
            last_seen.setdefault(head[2].decode(), int(head[1]))
        event = _decoded(line) if len(kept) < lines else None
        if event is not None and wanted(event):
            kept.append(event)
    for event in reversed(kept):
        show(event)
    if not follow:
        return
    with Subscriber(info.name, client="esper-daemon tail") as subscriber:
        for event in subscriber.events():
            if event.seq > last_seen.get(event.stream, 0) and wanted(event):
                show(event)
