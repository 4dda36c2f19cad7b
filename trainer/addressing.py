"""RUN on the command line, of this machine or of another: `--ssh`, and how a command reaches it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from protocol.errors import RunNotFound
from protocol.remote import with_key
from protocol.tunnel import DAEMON_VARIABLE, address_of, parse, run_there

_F = TypeVar("_F", bound=Callable[..., Any])


def run_argument(command: _F) -> _F:
    """RUN with `--ssh` and `--key`: the command gets one text, the run's name or its address."""
    for decorate in (
        click.option(
            "--key",
            metavar="NAME",
            expose_value=False,
            is_eager=True,
            callback=_remember,
            help="With a RUN tcp://HOST:PORT: which key, where there are several.",
        ),
        click.option(
            "--remote-command",
            metavar="COMMAND",
            expose_value=False,
            is_eager=True,
            callback=_remember_command,
            help=f"With --ssh: esper-daemon over there, where it is not on the PATH ({DAEMON_VARIABLE}).",
        ),
        click.option(
            "--ssh",
            metavar="USER@HOST[:RUN]",
            expose_value=False,
            is_eager=True,
            callback=_remember,
            help="A run on another machine, through OpenSSH.",
        ),
        click.argument("run", required=False, callback=_address),
    ):
        command = decorate(command)
    return command


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[f"esper.{parameter.name}"] = value


def _remember_command(_: click.Context, __: click.Parameter, value: str | None) -> None:
    if value:
        os.environ[DAEMON_VARIABLE] = value


def _address(context: click.Context, _: click.Parameter, run: str | None) -> str | None:
    ssh, key = context.meta.get("esper.ssh"), context.meta.get("esper.key")
    if ssh is not None:
        return address_of(ssh, run)
    return run if key is None else with_key(run or "", key)


def there(run: str | None, *, asks: bool = False) -> None:
    """For commands that read a run's files: where ssh leads to them, run it there and leave.

    Args:
        run: as `run_argument` gave it.
        asks: where only a port leads there, the command asks the daemon.

    Raises:
        TunnelError: the other machine cannot be reached.
        RunNotFound: only a port leads there.
    """
    if run is not None and run.startswith("tcp://") and not asks:
        what = click.get_current_context().info_name
        raise RunNotFound(f"{what} reads the run's files, which {run} does not lead to; use --ssh")
    if run is not None and run.startswith("ssh://"):
        destination = parse(run)
        sys.stdout.flush()
        sys.exit(run_there(destination, _words(click.get_current_context(), destination.run)))


def _words(context: click.Context, run: str | None) -> list[str]:
    """The command line of this invocation, with the run's bare name."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        if not parameter.expose_value and parameter.name != "run":
            continue
        value = run if parameter.name == "run" else context.params.get(parameter.name or "")
        if value is None or value is False:
            continue
        if isinstance(parameter, click.Argument):
            arguments.append(str(value))
        elif value is True:
            options.append(parameter.opts[0])
        else:
            for one in value if parameter.multiple else (value,):
                options += [parameter.opts[0], str(one)]
    return [context.info_name or "", *options, *(["--", *arguments] if arguments else [])]


def list_there(host: str, *, everything: bool, as_json: bool) -> None:
    """`list` over there; leaves with its exit code.

    Raises:
        BadName: no host.
        TunnelError: the other machine cannot be reached.
    """
    flags = [flag for flag, wanted in (("--all", everything), ("--json", as_json)) if wanted]
    sys.exit(run_there(parse(address_of(host)), ["list", *flags]))
