"""The programs behind the command line: the screen, or one screen as text. Slow to import."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import click

from esper_overwatch.protocol.codec.addresses import is_remote_address
from esper_overwatch.protocol.codec.text import clean_cells, clean_text, escape_json
from esper_overwatch.protocol.messages.events import lease_fingerprint

from .first_frame import FirstFrame
from .panels import PANELS
from .render.comparison_table import comparison_lines, differing_options, last_values
from .render.format import format_clock
from .render.layout import MIN_HEIGHT, MIN_WIDTH, compose_screen
from .render.lines import plain
from .render.link_text import link_text
from .render.notifier import TerminalNotifier, choose_outlet, chosen_quiet_hours
from .render.palettes import chosen_theme
from .render.summary import summary
from .render.theme import chosen_glyphs
from .render.view_state import ViewState
from .session import Session
from .settings.sources import Settings
from .source.compared_runs import open_compared, read_compared
from .source.feed import Feed, LiveFeed
from .source.recording import FetchFeed
from .source.replay import ReplayFeed, journal_of
from .start import RunChoice, find_named, make_run_list, open_first, open_named


@dataclass(frozen=True)
class WatchOptions:
    """The command line's description of the run and of the way to it."""

    compared: Sequence[str]
    """Names and addresses of the run and of those whose curves are laid over its; empty = it is alone."""
    ssh: Sequence[str]
    address: str | None
    """Address that `name`, `ssh` and a key mean together."""
    daemon: str | None
    """The command of esper-daemon on another machine."""
    thin: bool | None
    replay: str | None
    """A run or a file whose recording is played."""
    speed: float
    colour: bool


def _first_view(settings: Settings) -> ViewState:
    made = ViewState(
        glyphs=chosen_glyphs(settings.text("glyphs"), os.environ),
        read_only=bool(settings["read_only"]),
        rate=float(settings["refresh"]),
        sort=settings.text("sort"),
        keys=settings.keys,
    )
    PANELS.show(made, settings.text("view"))
    return made


def _recording(replay: str | None, speed: float) -> Feed | None:
    return None if replay is None else ReplayFeed(journal_of(replay), speed)


def print_once(options: WatchOptions, settings: Settings, *, after_round: int, as_json: bool) -> None:
    """Print one screen, or with `as_json` its values; see `Session.wait` and `open_named` for the errors."""
    if options.compared:
        _print_comparison(options, as_json=as_json)
        return
    feed = _recording(options.replay, math.inf)
    if feed is None:
        with closing(make_run_list(options.ssh, daemon=options.daemon, thin=options.thin)) as runs:
            feed = open_named(options.address, runs, daemon=options.daemon, thin=options.thin)
    feed = feed.wait() if isinstance(feed, FetchFeed) else feed  # no screen shows how it is fetched
    with closing(Session(feed, _first_view(settings))) as session:
        if not session.wait(after_round=after_round):
            click.echo("esper-tui: no epoch to show so far", err=True)
        inputs = session.panel_inputs()
        if as_json:
            click.echo(escape_json(json.dumps(summary(inputs))))
            return
        columns, lines = shutil.get_terminal_size((MIN_WIDTH, MIN_HEIGHT))
        screen = compose_screen(PANELS, inputs, inputs, columns, lines).text(columns, lines)
        click.echo("\n".join(map(clean_cells, screen.split("\n"))))


def _print_comparison(options: WatchOptions, *, as_json: bool) -> None:
    found = find_named(options.compared, daemon=options.daemon, thin=options.thin)
    runs = read_compared(found)
    if as_json:
        rows = {"options": differing_options(runs), "last": last_values(runs)}
        click.echo(escape_json(json.dumps({"runs": [run.name for run in runs], **rows})))
        return
    width = shutil.get_terminal_size((MIN_WIDTH, MIN_HEIGHT)).columns
    for line in comparison_lines(runs, width):
        click.echo(clean_cells(plain(line).rstrip()))


def watch(options: WatchOptions, settings: Settings, frame: FirstFrame) -> None:
    """Show a run, or the list of runs, until the operator leaves; takes over the terminal of the first frame.

    Raises:
        EsperError: the run cannot be opened.
    """
    view = _first_view(settings)
    runs = make_run_list(options.ssh, daemon=options.daemon, thin=options.thin)
    choice = RunChoice(runs, read_only=view.read_only)
    choice.compared = open_compared(find_named(options.compared, daemon=options.daemon, thin=options.thin))
    feed = _recording(options.replay, options.speed) or open_first(
        options.address, choice, daemon=options.daemon, thin=options.thin
    )
    view.read_only |= isinstance(feed, ReplayFeed)
    _run_app(Session(feed, view), choice, options, settings, frame)


def _run_app(
    session: Session, choice: RunChoice, options: WatchOptions, settings: Settings, frame: FirstFrame
) -> None:
    if not options.colour:
        os.environ["NO_COLOR"] = "1"
    # The run answers while Textual is imported, in two parts: then the first frame has its table.
    session.tick()
    import textual.app  # noqa: F401

    session.tick()
    from .app import OverwatchApp
    from .screens.driver import driver_after, read_escape_and_digit
    from .screens.idle_collection import IdleCollection

    theme = chosen_theme(settings.text("theme"), os.environ)
    app = OverwatchApp(session, colour=options.colour, theme=theme, choice=choice, settings=settings)
    app.notifier = TerminalNotifier(
        choose_outlet(settings.text("notify"), os.environ), chosen_quiet_hours(settings.text("quiet"))
    )
    session.tick()
    read_escape_and_digit()
    app.collection = IdleCollection()
    app.collection.take_over()
    if frame.is_shown:
        app.driver_class = driver_after(frame)
    try:
        app.run(mouse=bool(settings["mouse"]))
        link = app.session.link
        if link.state in ("live", "slow", "stale"):
            address = options.address
            back = choice.opened or (address if is_remote_address(address) else link.name)
            click.echo(clean_text(f"run {link.name} continues; watch it again with: esper-tui {back}"))
            _tell_lease(app.session)
        elif link.advice:
            click.echo(clean_text(link_text(link)))
    finally:
        app.session.close()
        choice.runs.close()
        choice.compared.close()


def _tell_lease(session: Session) -> None:
    """Print the lease that outlives this terminal, so that who took it can go on commanding."""
    held, feed = session.state.commands.lease, session.feed
    if held is not None and isinstance(feed, LiveFeed) and lease_fingerprint(feed.lease) == held.fingerprint:
        click.echo(f"its lease is yours until {format_clock(held.until)}: export ESPER_LEASE={feed.lease}")
