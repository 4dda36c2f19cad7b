"""RUN on the command line, of this machine or of another: `--ssh`, `--key`, and how a command reaches it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from esper_overwatch import connect
from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.ssh_command import DAEMON_VARIABLE, run_remotely
from esper_overwatch.protocol.codec.addresses import parse_ssh_address, run_address, ssh_address_of
from esper_overwatch.protocol.errors import RunNotFound
from esper_overwatch.protocol.version import __version__

CLIENT_NAME = f"esper-daemon/{__version__}"
_F = TypeVar("_F", bound=Callable[..., Any])
_ADDRESS_OPTIONS = frozenset({"ssh", "key", "remote_command"})

REMOTE_COMMAND = click.option(
    "--remote-command",
    metavar="COMMAND",
    help=f"With --ssh: command that runs esper-daemon on the remote machine; or {DAEMON_VARIABLE}.",
)


@dataclass(frozen=True)
class RunArgument:
    """The run that is meant, and the way to it."""

    address: str | None
    """Its name, id or address; None for the newest live one."""
    remote_daemon: str | None = None
    """Command of esper-daemon on a machine behind ssh; None = the default."""

    def connect(self) -> Client:
        """Connect to the live run; raises what `esper_overwatch.connect` does."""
        return connect(self.address, client=CLIENT_NAME, remote_daemon=self.remote_daemon)

    def run_remotely_if_addressed(self, *, asks: bool = False) -> None:
        """Run this invocation on the machine behind ssh, where the run is there, and exit.

        For commands that read a run's files.

        Args:
            asks: the command asks the daemon where only a port leads to the run.

        Raises:
            TunnelError: the other machine cannot be reached.
            RunNotFound: only a port leads there.
        """
        address, context = self.address, click.get_current_context()
        if address is not None and address.startswith("tcp://") and not asks:
            what = context.info_name
            raise RunNotFound(f"{what} reads the run's files, which {address} does not lead to; use --ssh")
        if address is not None and address.startswith("ssh://"):
            destination = parse_ssh_address(address)
            words = _command_line(context, destination.run)
            sys.stdout.flush()
            sys.exit(run_remotely(destination, words, daemon=self.remote_daemon))


class CommandAfterRun(click.Command):
    """A command that takes RUN and more: where `--ssh` names the run, RUN is not expected.

    The name is put where RUN stands, so that what follows is in its place; never one that reads as an option.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        ssh = given.get("ssh")
        run = parse_ssh_address(ssh_address_of(ssh)).run if isinstance(ssh, str) else None
        if run is not None and not run.startswith("-"):
            args = [run, *args]
        return super().parse_args(ctx, args)


def run_argument(command: _F, *, required: bool = False) -> _F:
    """RUN with `--ssh`, `--remote-command` and `--key`: the command gets one `RunArgument`.

    Args:
        required: RUN may not be left out, but where `--ssh` names it.
    """

    @functools.wraps(command)
    def with_run(
        run: str | None,
        ssh: str | None,
        key: str | None,
        remote_command: str | None,
        **others: Any,
    ) -> Any:
        argument = RunArgument(run_address(run, ssh=ssh, key=key), remote_command)
        return command(run=argument, **others)

    decorated: Any = with_run
    for decorate in (
        click.option(
            "--key", metavar="NAME", help="Name of the key for tcp://HOST:PORT, where there are several."
        ),
        REMOTE_COMMAND,
        click.option(
            "--ssh",
            metavar="USER@HOST[:RUN]",
            help="A run on another machine, through OpenSSH; where it names RUN, leave RUN out.",
        ),
        click.argument("run", required=required),
    ):
        decorated = decorate(decorated)
    result: _F = decorated
    return result


def required_run_argument(command: _F) -> _F:
    """`run_argument` where RUN may not be left out; the command is a `CommandAfterRun`."""
    return run_argument(command, required=True)


def _command_line(context: click.Context, run: str | None) -> list[str]:
    """This invocation as words for another machine, with the run's bare name.

    Made of what click has parsed: `sys.argv` still holds the address and `--ssh`, in any spelling and place.
    """
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = run if name == "run" else context.params.get(name)
        if name in _ADDRESS_OPTIONS or value is None or value is False:
            continue
        if isinstance(parameter, click.Argument):
            arguments += map(str, value if parameter.nargs == -1 else (value,))
        elif value is True:
            options.append(parameter.opts[0])
        else:
            for one in value if parameter.multiple else (value,):
                options += [parameter.opts[0], str(one)]
    names, at = [context.info_name or ""], context.parent
    while at is not None and at.parent is not None:  # of groups, without the program's
        names, at = [at.info_name or "", *names], at.parent
    return [*names, *options, *(["--", *arguments] if arguments else [])]


def host_option(help: str) -> Callable[[_F], _F]:
    """`--ssh USER@HOST` with `--remote-command`, for a command whose runs are all on that machine.

    Where it is given, the same command runs there, and the program ends with its exit code.

    Args:
        help: of `--ssh`.
    """

    def decorate(command: _F) -> _F:
        @functools.wraps(command)
        def here_or_there(ssh: str | None, remote_command: str | None, **others: Any) -> Any:
            if ssh is not None:
                words = _command_line(click.get_current_context(), None)
                sys.stdout.flush()
                sys.exit(run_remotely(parse_ssh_address(ssh_address_of(ssh)), words, daemon=remote_command))
            return command(**others)

        with_host = click.option("--ssh", metavar="USER@HOST", help=help)
        result: _F = with_host(REMOTE_COMMAND(here_or_there))  # type: ignore[assignment]
        return result

    return decorate
