"""`esper-tui`: watch a run and steer it."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click

from protocol.client.command_line import exit_on_error
from protocol.client.ssh import DAEMON_VARIABLE
from protocol.codec.addresses import is_remote_address, run_address
from protocol.codec.text import clean_cells, clean_text, escape_json
from protocol.errors import EsperError
from protocol.version import __version__

from .hangup import leave_on_hangup
from .panels import PANELS, VIEWS
from .render.layout import MIN_HEIGHT, MIN_WIDTH, compose_screen
from .render.summary import summary
from .render.theme import ASCII, UNICODE, prefers_ascii
from .render.view_state import REFRESH_RATES, ViewState
from .session import Session
from .source.feed import Feed, LiveFeed
from .source.replay import ReplayFeed, journal_of

DRIVER_VARIABLE = "TEXTUAL_DRIVER"
"""Set by textual-serve: the terminal is a page of a browser, behind a pipe."""


class _Command(click.Command):
    """Turns errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        with exit_on_error("esper-tui"):
            return super().invoke(ctx)


@click.command(cls=_Command)
@click.argument("name", required=False)
@click.option("--ssh", metavar="USER@HOST[:RUN]", help="A run on another machine, through OpenSSH.")
@click.option("--key", metavar="NAME", help="Name of the key for tcp://HOST:PORT, where there are several.")
@click.option(
    "--remote-command",
    metavar="COMMAND",
    help=f"With --ssh: command that runs esper-daemon on the remote machine; or {DAEMON_VARIABLE}.",
)
@click.option(
    "--once", is_flag=True, help="Print one screen as text and exit; COLUMNS and LINES set its size."
)
@click.option("--json", "as_json", is_flag=True, help="With --once: print the values as JSON.")
@click.option(
    "--after-round",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --once: wait until round N has ended.",
)
@click.option(
    "--view", type=click.Choice(VIEWS), default="envs", show_default=True, help="View that is shown first."
)
@click.option("--replay", metavar="RUN|FILE", help="Play the journal of a run instead of following it.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="Speed of --replay, times that of the run.",
)
@click.option("--read-only", is_flag=True, help="Watch only; send no commands.")
@click.option(
    "--ascii", is_flag=True, help="Use ASCII characters only (automatic where the terminal needs it)."
)
@click.option(
    "--thin/--full",
    default=None,
    help="Receive the newest metrics five times a second, or all; thin is the default for remote runs.",
)
@click.option("--no-color", is_flag=True, help="Use bold and reverse only; NO_COLOR does the same.")
@click.option(
    "--mouse/--no-mouse", default=False, help="Take clicks and the wheel; text is then marked with Shift."
)
@click.option(
    "--serve", is_flag=True, help="Show it in a browser: serve it on this machine's loopback address."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    show_default=True,
    help="With --serve: port; 0 = any that is free.",
)
@click.option(
    "--refresh",
    type=click.Choice([f"{r:g}" for r in REFRESH_RATES]),
    default="1",
    show_default=True,
    help="Frames per second.",
)
@click.version_option(__version__, prog_name="esper-tui")
def main(
    name: str | None,
    ssh: str | None,
    key: str | None,
    remote_command: str | None,
    once: bool,
    as_json: bool,
    after_round: int | None,
    view: str,
    replay: str | None,
    speed: float,
    read_only: bool,
    ascii: bool,
    thin: bool | None,
    no_color: bool,
    mouse: bool,
    serve: bool,
    port: int,
    refresh: str,
) -> None:
    """Watch a run in the terminal and steer it.

    NAME is a run's name or id, or the beginning of one; without it, the newest live run is followed.
    Leaving does not affect the run. On another machine: --ssh USER@HOST[:RUN], or the
    NAME tcp://HOST:PORT of a daemon that listens there. Keys: press ? inside.
    """
    if serve:
        _serve(port, once=once)
        return
    if not once and (as_json or after_round):
        raise click.UsageError("--json and --after-round go with --once")
    if replay and (name or ssh):
        raise click.UsageError("give a run to watch or --replay RUN|FILE, not both")
    name = run_address(name, ssh=ssh, key=key)
    chosen = ViewState(
        glyphs=ASCII if ascii or prefers_ascii(os.environ) else UNICODE,
        read_only=read_only or replay is not None,
        rate=float(refresh),
    )
    chosen.show_view(view)
    feed: Feed
    if replay:
        feed = ReplayFeed(journal_of(replay), math.inf if once else speed)
    else:
        feed = LiveFeed(
            name, thin=is_remote_address(name) if thin is None else thin, remote_daemon=remote_command
        )
    session = Session(feed, chosen)
    try:
        if once:
            _print_once(session, after_round or 0, as_json)
        else:
            address = name if is_remote_address(name) else None
            _watch(session, address, colour=not (no_color or os.environ.get("NO_COLOR")), mouse=mouse)
    finally:
        session.close()


def _print_once(session: Session, after_round: int, as_json: bool) -> None:
    if not session.wait(after_round=after_round):
        click.echo("esper-tui: no epoch to show so far", err=True)
    inputs = session.panel_inputs()
    if as_json:
        click.echo(escape_json(json.dumps(summary(inputs))))
        return
    columns, lines = shutil.get_terminal_size((MIN_WIDTH, MIN_HEIGHT))
    screen = compose_screen(PANELS, inputs, inputs, columns, lines).text(columns, lines)
    click.echo("\n".join(map(clean_cells, screen.split("\n"))))


def _serve(port: int, *, once: bool) -> None:
    """Serve this command line without the options that ask for it."""
    if once:
        raise click.UsageError("--once prints a screen, --serve shows it in a browser: give one of them")
    try:
        from .browser import serve
    except ModuleNotFoundError as error:
        raise EsperError("--serve needs textual-serve: pip install 'esper-overwatch[serve]'") from error
    serve(without_serve(sys.argv[1:]), port)


def without_serve(arguments: Sequence[str]) -> list[str]:
    """The arguments of the command that each page runs."""
    kept = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--port":
            next(rest, None)
        elif argument != "--serve" and not argument.startswith("--port="):
            kept.append(argument)
    return kept


def _watch(session: Session, address: str | None, *, colour: bool, mouse: bool) -> None:
    if not sys.stdout.isatty() and DRIVER_VARIABLE not in os.environ:
        raise click.UsageError("standard output is not a terminal; use --once to print one screen as text")
    if not colour:
        os.environ["NO_COLOR"] = "1"
    from .app import OverwatchApp

    leave_on_hangup(sys.stdout.fileno())
    OverwatchApp(session, colour=colour).run(mouse=mouse)
    name = session.link.name
    if session.link.state in ("live", "slow", "stale"):
        back = name if address is None else address
        click.echo(clean_text(f"run {name} continues; watch it again with: esper-tui {back}"))
