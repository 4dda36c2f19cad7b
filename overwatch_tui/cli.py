"""`esper-tui`: watch a run and steer it."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from typing import Any

import click

from protocol.errors import EsperError
from protocol.remote import with_key
from protocol.target import is_remote
from protocol.tunnel import DAEMON_VARIABLE, address_of
from protocol.version import __version__

from . import once as once_
from .compose import MIN_HEIGHT, MIN_WIDTH
from .feed import Feed, LiveFeed, ReplayFeed, journal_of
from .hangup import leave_on_hangup
from .session import Session
from .theme import ASCII, UNICODE, prefers_ascii
from .view import RATES, VIEWS, View


class _Command(click.Command):
    """Errors become one line and an exit code, here and nowhere else."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EsperError as error:
            click.echo(f"esper-tui: {error}", err=True)
            ctx.exit(error.exit_code)


@click.command(cls=_Command)
@click.argument("name", required=False)
@click.option("--ssh", metavar="USER@HOST[:RUN]", help="A run on another machine, through OpenSSH.")
@click.option("--key", metavar="NAME", help="With a NAME tcp://HOST:PORT: which key, if there are several.")
@click.option(
    "--remote-command",
    metavar="COMMAND",
    help=f"With --ssh: esper-daemon over there, where it is not on the PATH ({DAEMON_VARIABLE}).",
)
@click.option("--once", is_flag=True, help="Print one frame as text and leave; size from COLUMNS and LINES.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print the figures as JSON instead.")
@click.option(
    "--after-round",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --once: wait until round N has ended.",
)
@click.option(
    "--view", type=click.Choice(VIEWS), default="envs", show_default=True, help="View to begin with."
)
@click.option("--replay", metavar="RUN|FILE", help="Play a run's journal instead of a live run.")
@click.option("--speed", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Of --replay.")
@click.option("--read-only", is_flag=True, help="No commands: watch only.")
@click.option(
    "--ascii", is_flag=True, help="No character beyond ASCII (by itself where the terminal asks for it)."
)
@click.option(
    "--thin/--full",
    default=None,
    help="The newest metrics five times a second, or all of them; thin by itself with --ssh.",
)
@click.option("--no-color", is_flag=True, help="Bold and reverse only; NO_COLOR does the same.")
@click.option(
    "--refresh",
    type=click.Choice([f"{r:g}" for r in RATES]),
    default="1",
    show_default=True,
    help="Pictures per second.",
)
@click.version_option(__version__, prog_name="esper-tui")
def main(
    name: str | None, ssh: str | None, key: str | None, remote_command: str | None, once: bool, as_json: bool,
    after_round: int | None, view: str, replay: str | None, speed: float, read_only: bool, ascii: bool,
    thin: bool | None, no_color: bool, refresh: str,
) -> None:  # fmt: skip
    """Watch a run in the terminal and steer it.

    NAME is a run's name or id, or the beginning of one; without it, the newest live run is followed.
    Leaving never touches the run. On another machine: --ssh USER@HOST[:RUN], or the
    NAME tcp://HOST:PORT of a daemon that listens there. Keys: press ? inside.
    """
    if not once and (as_json or after_round):
        raise click.UsageError("--json and --after-round go with --once")
    if replay and (name or ssh):
        raise click.UsageError("give a run to watch or --replay RUN|FILE, not both")
    if remote_command:
        os.environ[DAEMON_VARIABLE] = remote_command
    if ssh is not None:
        name = address_of(ssh, name)
    elif key is not None:
        name = with_key(name or "", key)
    chosen = View(
        glyphs=ASCII if ascii or prefers_ascii(os.environ) else UNICODE,
        read_only=read_only or replay is not None,
        rate=float(refresh),
    )
    chosen.show(view)
    feed: Feed
    if replay:
        feed = ReplayFeed(journal_of(replay), math.inf if once else speed)
    else:
        feed = LiveFeed(name, thin=is_remote(name) if thin is None else thin)
    session = Session(feed, chosen)
    try:
        if once:
            _print_once(session, after_round or 0, as_json)
        else:
            address = name if is_remote(name) else None
            _watch(session, address, colour=not (no_color or os.environ.get("NO_COLOR")))
    finally:
        session.close()


def _print_once(session: Session, after_round: int, as_json: bool) -> None:
    once_.wait(session, after_round=after_round)
    if as_json:
        click.echo(json.dumps(once_.summary(session)))
        return
    columns, lines = shutil.get_terminal_size((MIN_WIDTH, MIN_HEIGHT))
    click.echo(once_.text(session, columns, lines))


def _watch(session: Session, address: str | None, *, colour: bool) -> None:
    if not sys.stdout.isatty():
        raise click.UsageError("standard output is no terminal; --once prints a frame as text")
    if not colour:
        os.environ["NO_COLOR"] = "1"
    from .app import OverwatchApp

    leave_on_hangup(sys.stdout.fileno())
    OverwatchApp(session, colour=colour).run(mouse=False)
    name = session.link.name
    if session.link.state in ("live", "slow", "stale"):
        back = name if address is None else address
        click.echo(f"run {name} goes on; come back with: esper-tui {back}")
