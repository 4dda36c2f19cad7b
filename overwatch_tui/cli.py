"""`esper-tui`: watch a run and steer it.

What takes time to import is imported when there is something on the screen: `watch` and what it needs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from esper_overwatch.protocol.client.command_line import check_arguments, exit_on_error
from esper_overwatch.protocol.client.ssh_command import DAEMON_VARIABLE
from esper_overwatch.protocol.codec.addresses import is_remote_address, run_address, ssh_address_of
from esper_overwatch.protocol.version import __version__

from .first_frame import FirstFrame
from .hangup import leave_on_hangup, leave_on_signals
from .settings.sources import read_settings
from .settings.table import SETTINGS, SettingValue, format_value
from .source.temporary_folders import remove_temporary_folders

DRIVER_VARIABLE = "TEXTUAL_DRIVER"
"""Set by textual-serve: the terminal is a page of a browser, behind a pipe."""


class _Command(click.Command):
    """Turns errors into one line and an exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with exit_on_error("esper-tui"):
            check_arguments(args)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with exit_on_error("esper-tui"):
            return super().invoke(ctx)


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting, under its name; `glyphs` has `--ascii`."""
    for name, setting in reversed(SETTINGS.items()):
        option, default = f"--{name.replace('_', '-')}", f"  [default: {format_value(setting.default)}]"
        if name == "glyphs":
            continue
        if isinstance(setting.default, bool):
            made = click.option(f"{option}/--no-{option[2:]}", name, default=None, help=setting.help)
        elif setting.read is not None:
            examples = f"[{'|'.join(map(str, setting.choices))}|...]"
            made = click.option(option, metavar=examples, help=setting.help + default)
        else:
            names = [format_value(choice) for choice in setting.choices]
            made = click.option(option, type=click.Choice(names), help=setting.help + default)
        command = made(command)
    return command


@click.command(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.option("--replay", metavar="RUN|FILE", help="Play the journal of a run instead of following it.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="Speed of --replay, times that of the run.",
)
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
    "--serve", is_flag=True, help="Show it in a browser: serve it on this machine's loopback address."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    show_default=True,
    help="With --serve: port; 0 = any that is free.",
)
@_setting_options
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
    replay: str | None,
    speed: float,
    ascii: bool,
    thin: bool | None,
    no_color: bool,
    serve: bool,
    port: int,
    **chosen: SettingValue | None,
) -> None:
    """Watch a run in the terminal and steer it.

    NAME is a run's name or id, or the beginning of one; one that has ended is opened as a recording.
    Without it, the live run is followed where there is one, else the runs are listed (inside: R).
    With OTHERS, charts show their curves over those of NAME; a run of another machine is ssh://HOST/RUN.
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
    chosen["glyphs"] = "ascii" if ascii else None
    if chosen["refresh"] is not None:
        chosen["refresh"] = float(chosen["refresh"])
    settings = read_settings(os.environ, chosen)
    if once:
        leave_on_signals(remove_temporary_folders)
    else:
        _prepare_terminal()
    # ssh may have to ask for a passphrase before the terminal is taken.
    is_ssh = bool(ssh) or (address or "").startswith("ssh://")
    is_wanted = not (once or is_ssh or DRIVER_VARIABLE in os.environ)
    with FirstFrame(_first_words(address, replay), is_wanted=is_wanted) as frame:
        from .watch import WatchOptions, print_once, watch

        has_colour = not (no_color or os.environ.get("NO_COLOR"))
        # Of the machine of --ssh, where their names do not say another one.
        compared = [
            each if is_remote_address(each) or not ssh else ssh_address_of(ssh[0], each)
            for each in ([name or "", *others] if others else [])
        ]
        hosts = (name,) if name and name.startswith("ssh://") else ssh
        options = WatchOptions(compared, hosts, address, remote_command, thin, replay, speed, has_colour)
        if once:
            print_once(options, settings, after_round=after_round or 0, as_json=as_json)
        else:
            watch(options, settings, frame)


def _first_words(address: str | None, replay: str | None) -> str:
    """Text of the first frame, while nothing is known of the run."""
    if replay is not None:
        return f"opening the recording of {replay}"
    return "looking for a live run" if address is None else f"connecting to {address}"


def _check_usage(
    name: str | None, others: Sequence[str], ssh: Sequence[str], *, replay: str | None, once: bool
) -> None:
    """Refuse combinations of names that make no sense."""
    if replay and (name or ssh):
        raise click.UsageError("give a run to watch or --replay RUN|FILE, not both")
    if len(ssh) > 1 and (name or once):
        raise click.UsageError("several --ssh are for the list of runs: leave out NAME and --once")
    if others and any(one.startswith("tcp://") for one in (name or "", *others)):
        raise click.UsageError("runs are compared from their files: leave out tcp://, write ssh://HOST/RUN")


def _serve(port: int, *, once: bool) -> None:
    """Serve this command line without the options that ask for it."""
    if once:
        raise click.UsageError("--once prints a screen, --serve shows it in a browser: give one of them")
    from .browser import serve

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


def _prepare_terminal() -> None:
    if not sys.stdout.isatty() and DRIVER_VARIABLE not in os.environ:
        raise click.UsageError("standard output is not a terminal; use --once to print one screen as text")
    leave_on_hangup(sys.stdout.fileno(), remove_temporary_folders)
    leave_on_signals(remove_temporary_folders)
    gc.disable()  # until all is imported; see screens/idle_collection.py
