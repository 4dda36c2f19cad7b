"""`esper-daemon tail` and `esper-daemon replay`: a run's events as lines of text or JSON."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import click

from esper_overwatch.protocol.client.event_log import EventLog, Following, open_event_log
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.errors import NoReply, RequestError, WireError
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import JournalRange
from esper_overwatch.protocol.messages.events import EVENTS, Anomaly, ImagePreview, LogLine, Scalars
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Severity
from esper_overwatch.protocol.runs import find_run

from .options import JSON, RUN, TYPES
from .output import exit_on_damage, print_json_text, print_lines, print_note, wait_while_read
from .run_argument import CLIENT_NAME, RunArgument

FOLLOW_SECONDS = 5.0
"""From one look of `replay --follow` at a journal to the next."""
_COLOUR: dict[Severity, str | None] = {"info": None, "warning": "yellow", "critical": "red"}


@click.command()
@RUN
@click.option("-f", "--follow", is_flag=True, help="Print new events as they arrive.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Number of events printed first.",
)
@TYPES
@JSON
def tail(run: RunArgument, follow: bool, lines: int, types: tuple[str, ...], as_json: bool) -> None:
    """Print the newest events of a run, live or ended."""
    run.run_remotely_if_addressed(asks=True)
    _check_types(types)
    tail_run(run.address, follow=follow, lines=lines, types=types, as_json=as_json)


@click.command()
@RUN
@click.option("--stream", type=click.Choice(STREAMS), help="Only this stream.")
@click.option("--first", type=click.IntRange(min=1), help="From this number on (with --stream).")
@click.option("--last", type=click.IntRange(min=1), help="Up to this number (with --stream).")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written then, until the run ends.")
@TYPES
@JSON
def replay(
    run: RunArgument,
    stream: str | None,
    first: int | None,
    last: int | None,
    follow: bool,
    types: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print a range of a run's events, from all segments of its journal."""
    if stream is None and (first is not None or last is not None):
        raise click.UsageError("--first and --last are numbers of one stream; give --stream, too")
    if follow and stream is not None:
        raise click.UsageError("--follow goes on with all streams; leave out --stream, or choose by --type")
    run.run_remotely_if_addressed(asks=not follow)
    _check_types(types)
    wanted = JournalRange(stream, first or 1, last)
    replay_run(run.address, wanted, types, follow=follow, as_json=as_json)


def _check_types(types: tuple[str, ...]) -> None:
    """Refuse types that no event has; what is asked of another machine, that machine checks."""
    for name in types:
        if name in EVENTS:
            continue
        near = difflib.get_close_matches(name, EVENTS, n=3, cutoff=0.5)
        near += [one for one in EVENTS if name and name in one and one not in near]
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(EVENTS))}"
        raise click.UsageError(clean_text(f"--type: there are no events of the type {name!r}; {hint}"))


def format_event(event: Event) -> str:
    """One event as one line of text: time, clock (from round 1 on), type, fields that are not empty."""
    fields = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in vars(event.data).items()
        if value not in (None, "")
        and key != "traceback"
        and not isinstance(value, list | dict | ImagePreview)
    )
    if isinstance(event.data, Scalars):
        fields += "".join(f" {name}={value:.4g}" for name, value in event.data.values.items())
    if not fields and vars(event.data):
        fields = "lists alone; --json shows them"
    clock = time.strftime("%H:%M:%S", time.localtime(event.ts / 1e6))
    env = "" if event.ctx.env is None else f" env{event.ctx.env:02d}"
    at = f"r{event.ctx.round} e{event.ctx.epoch:<3}{env} " if event.ctx.round else ""
    return f"{clock} {at}{event.type} {fields}".rstrip()


def format_traceback(event: Event) -> list[str]:
    """The lines of the traceback that an event brings, indented; of most events none."""
    text = event.data.traceback if isinstance(event.data, LogLine) else None
    return [f"    {line}" for line in (text or "").splitlines()]


def tail_run(run: str | None, *, follow: bool, lines: int, types: tuple[str, ...], as_json: bool) -> None:
    """Print the last `lines` events; with `follow`, the live ones after them, also of the run's next boots.

    Raises:
        RunNotFound: no such run, or not any more.
    """

    def wanted(event: Event) -> bool:
        return not types or event.type in types

    with ExitStack() as stack:
        log = stack.enter_context(closing(open_event_log(run, client=CLIENT_NAME)))
        coming = None
        if follow:
            coming = stack.enter_context(closing(Following(log, client="esper-daemon tail")))
        last_seen: dict[str, int] = {}
        kept: list[Event] = []
        try:
            _read_newest(log, last_seen, kept, wanted, lines=lines, all_streams=follow)
        except (NoReply, RequestError):
            if coming is None or not coming.is_joined:
                raise
            last_seen, kept = {}, []  # it has ended meanwhile: what came when it was joined is printed
        for event in reversed(kept):
            _print_event(event, as_json=as_json, coloured=True)

        def report_lost(why: str) -> None:
            print_lines([f"{log.name}: {why}; waiting for it to come back"], to_stderr=True)

        for event in coming.events(last_seen, report_lost) if coming else ():
            if wanted(event):
                _print_event(event, as_json=as_json, coloured=True)


def _read_newest(
    log: EventLog,
    last_seen: dict[str, int],
    kept: list[Event],
    wanted: Callable[[Event], bool],
    *,
    lines: int,
    all_streams: bool,
) -> None:
    """Read backwards until `kept` has as many wanted events as asked for, the newest first.

    Args:
        last_seen: gets the newest number per stream; with `all_streams` of each that has one.
    """
    last_seen |= log.last
    for stream, seq, line in log.newest_first():
        if len(kept) >= lines and (not all_streams or len(last_seen) == len(STREAMS)):
            return
        last_seen.setdefault(stream, seq)
        event = _decode(line) if len(kept) < lines else None
        if event is not None and wanted(event):
            kept.append(event)


def replay_run(
    run: str | None, wanted: JournalRange, types: tuple[str, ...], *, follow: bool, as_json: bool
) -> None:
    """Print the wanted events in the order written; with `follow` also what a live run writes from then on.

    Raises:
        RunNotFound: no such run.
        RequestError: `range_gone`, retention has taken the beginning of it; the message names the oldest.
        FolderError: the journal cannot be read.
        SystemExit: it is damaged; what is whole has been printed, and what is lost is on standard error.
    """
    with closing(open_event_log(run, client=CLIENT_NAME)) as log:
        stream, first, last = wanted.stream, wanted.first, wanted.last
        oldest = 1 if stream is None else log.oldest(stream)
        if first < oldest and (last or oldest) < oldest:
            raise RequestError(
                "range_gone",
                f"{stream} {first}..{last} is no longer held; the oldest is {oldest}",
                {"oldest": oldest},
            )
        if 1 < first < oldest:
            print_note(f"{stream} before {oldest} is no longer held")
        report = DamageReport()
        report.expect({one: max(first, log.oldest(one)) for one in STREAMS})
        after: dict[str, int] = {}
        is_read = False
        while not is_read:
            is_read = not (follow and find_run(log.name).is_live)
            for event in report.watch(log.read(wanted, on_bad=report.note)):
                after[event.stream] = event.seq
                if not types or event.type in types:
                    _print_event(event, as_json=as_json)
            if not is_read:
                wait_while_read(FOLLOW_SECONDS)
                wanted = JournalRange(after=after)
        exit_on_damage(report)


def _decode(line: bytes) -> Event | None:
    try:
        return decode_line(line)
    except WireError:
        return None


def _print_event(event: Event, *, as_json: bool, coloured: bool = False) -> None:
    if as_json:
        print_json_text(event.line)
        return
    severity = event.data.severity if coloured and isinstance(event.data, Anomaly) else "info"
    print_lines([format_event(event), *format_traceback(event)], colour=_COLOUR[severity])


COMMANDS: tuple[click.Command, ...] = (tail, replay)
