"""`esper-tui`: watch a run and steer it."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from protocol.client.command_line import exit_on_error
from protocol.client.ssh_command import DAEMON_VARIABLE
from protocol.codec.addresses import is_remote_address, run_address
from protocol.codec.text import clean_cells, clean_text, escape_json
from protocol.errors import EsperError
from protocol.version import __version__

from .hangup import leave_on_hangup
from .panels import ALL_VIEWS, PANELS
from .render.layout import MIN_HEIGHT, MIN_WIDTH, compose_screen
from .render.link_text import link_text
from .render.notifier import CHOICES, QuietHours, TerminalNotifier, choose_outlet, parse_quiet_hours
from .render.palettes import PALETTES, automatic_theme
from .render.summary import summary
from .render.theme import chosen_glyphs
from .render.view_state import REFRESH_RATES, SORTS, ViewState
from .session import Session
from .settings.sources import Settings, read_settings
from .settings.table import Value
from .source.compared_runs import open_compared
from .source.feed import Feed
from .source.replay import ReplayFeed, journal_of
from .start import RunChoice, make_run_list, open_address, open_first

DRIVER_VARIABLE = "TEXTUAL_DRIVER"
"""Set by textual-serve: the terminal is a page of a browser, behind a pipe."""


class _Command(click.Command):
    """Turns errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        with exit_on_error("esper-tui"):
            return super().invoke(ctx)


def _quiet_hours(_ctx: click.Context, _option: click.Parameter, text: str | None) -> QuietHours | None:
    try:
        return None if text is None else parse_quiet_hours(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=_Command)
@click.argument("name", required=False)
@click.argument("others", nargs=-1)
@click.option(
    "--ssh",
    multiple=True,
    metavar="USER@HOST[:RUN]",
    help="A run on another machine, through OpenSSH; given several times, the runs of all in one list.",
)
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
    "--view",
    type=click.Choice(ALL_VIEWS),
    help="View that is shown first.  [default: envs]",
)
@click.option("--sort", type=click.Choice(SORTS), help="Order of the envs.  [default: attention]")
@click.option("--replay", metavar="RUN|FILE", help="Play the journal of a run instead of following it.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="Speed of --replay, times that of the run.",
)
@click.option("--read-only/--no-read-only", default=None, help="Watch only; send no commands.")
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
    "--theme",
    type=click.Choice(["auto", *PALETTES]),
    help="Colours; auto = by what TERM can show. Inside: ^T.  [default: auto]",
)
@click.option(
    "--mouse/--no-mouse", default=None, help="Take clicks and the wheel; text is then marked with Shift."
)
@click.option(
    "--notify",
    type=click.Choice(CHOICES),
    help="How a new critical anomaly is told: bell, or also a notification of the desktop.  [default: auto]",
)
@click.option(
    "--quiet",
    metavar="HH:MM-HH:MM",
    callback=_quiet_hours,
    help="No bell and no notification in these hours, such as 22:00-07:00.",
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
    help="Frames per second.  [default: 1]",
)
@click.version_option(__version__, prog_name="esper-tui")
def main(
    name: str | None,
    others: tuple[str, ...],
    ssh: tuple[str, ...],
    key: str | None,
    remote_command: str | None,
    once: bool,
    as_json: bool,
    after_round: int | None,
    view: str | None,
    sort: str | None,
    replay: str | None,
    speed: float,
    read_only: bool | None,
    ascii: bool,
    thin: bool | None,
    no_color: bool,
    theme: str | None,
    mouse: bool | None,
    notify: str | None,
    quiet: QuietHours | None,
    serve: bool,
    port: int,
    refresh: str | None,
) -> None:
    """Watch a run in the terminal and steer it.

    NAME is a run's name or id, or the beginning of one; one that has ended is opened as a recording.
    Without it, the live run is followed where there is one, else the runs are listed (inside: R).
    With OTHERS, runs of this machine, charts show their curves over those of NAME.
    Leaving does not affect the run. On another machine: --ssh USER@HOST[:RUN], or the
    NAME tcp://HOST:PORT of a daemon that listens there. Keys: press ? inside.
    """
    if serve:
        _serve(port, once=once)
        return
    _check_usage(name, others, ssh, replay=replay, once=once)
    if not once and (as_json or after_round):
        raise click.UsageError("--json and --after-round go with --once")
    address = run_address(name, ssh=ssh[0] if ssh else None, key=key)
    options: dict[str, Value | None] = {"theme": theme, "mouse": mouse, "notify": notify, "view": view}
    options |= {"sort": sort, "read_only": read_only}
    options |= {"refresh": float(refresh) if refresh else None, "glyphs": "ascii" if ascii else None}
    settings = read_settings(os.environ, options)
    chosen = _first_view(settings)
    if once:
        feed = _feed_of_recording(replay, math.inf) or open_address(address, daemon=remote_command, thin=thin)
        with closing(Session(feed, chosen)) as session:
            _print_once(session, after_round or 0, as_json)
        return
    _require_terminal()
    choice = RunChoice(make_run_list(ssh, daemon=remote_command, thin=thin), read_only=chosen.read_only)
    choice.compared = open_compared(name, others)
    feed = _feed_of_recording(replay, speed) or open_first(address, choice, daemon=remote_command, thin=thin)
    chosen.read_only |= isinstance(feed, ReplayFeed)
    has_colour = not (no_color or os.environ.get("NO_COLOR"))
    notifier = TerminalNotifier(choose_outlet(settings.text("notify"), os.environ), quiet)
    _watch(Session(feed, chosen), choice, address, settings, notifier, colour=has_colour)


def _first_view(settings: Settings) -> ViewState:
    """What the settings ask for."""
    made = ViewState(
        glyphs=chosen_glyphs(settings.text("glyphs"), os.environ),
        read_only=bool(settings["read_only"]),
        rate=float(settings["refresh"]),
        sort=settings.text("sort"),
        keys=settings.keys,
    )
    made.show_view(settings.text("view"))
    return made


def _check_usage(
    name: str | None, others: Sequence[str], ssh: Sequence[str], *, replay: str | None, once: bool
) -> None:
    """Refuse names that do not go together."""
    if replay and (name or ssh):
        raise click.UsageError("give a run to watch or --replay RUN|FILE, not both")
    if len(ssh) > 1 and (name or once):
        raise click.UsageError("several --ssh are for the list of runs: leave out NAME and --once")
    if others and (ssh or once or is_remote_address(name)):
        raise click.UsageError(
            "several runs are compared on this machine's screen: leave out --ssh and --once"
        )


def _feed_of_recording(replay: str | None, speed: float) -> Feed | None:
    return None if replay is None else ReplayFeed(journal_of(replay), speed)


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


def _require_terminal() -> None:
    if not sys.stdout.isatty() and DRIVER_VARIABLE not in os.environ:
        raise click.UsageError("standard output is not a terminal; use --once to print one screen as text")


def _watch(
    session: Session,
    choice: RunChoice,
    address: str | None,
    settings: Settings,
    notifier: TerminalNotifier,
    *,
    colour: bool,
) -> None:
    if not colour:
        os.environ["NO_COLOR"] = "1"
    from .app import OverwatchApp

    leave_on_hangup(sys.stdout.fileno())
    theme = settings.text("theme")
    theme = automatic_theme(os.environ) if theme == "auto" else theme
    app = OverwatchApp(session, colour=colour, theme=theme, choice=choice, settings=settings)
    app.notifier = notifier
    try:
        app.run(mouse=bool(settings["mouse"]))
        link = app.session.link
        if link.state in ("live", "slow", "stale"):
            back = choice.opened or (address if is_remote_address(address) else link.name)
            click.echo(clean_text(f"run {link.name} continues; watch it again with: esper-tui {back}"))
        elif link.is_dead:
            click.echo(clean_text(link_text(link)))
    finally:
        app.session.close()
        choice.runs.close()
