"""The start: one run, live or recorded, or the list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from esper_overwatch.protocol.codec.addresses import is_remote_address, parse_ssh_address, ssh_address_of
from esper_overwatch.protocol.errors import RunNotFound, TunnelError

from .render.view_state import ViewState
from .source.compared_runs import ComparedRuns
from .source.feed import Feed, LiveFeed, NoFeed
from .source.run_list import ListedRun, LocalMachine, MachineRuns, RemoteMachine, RunList


@dataclass
class RunChoice:
    """The runs that this terminal can open."""

    runs: RunList = field(default_factory=lambda: RunList([LocalMachine()]))
    read_only: bool = False
    """True if no run may be sent commands; a recording takes none anyway."""
    is_start: bool = False
    """True if the list is shown first."""
    view: ViewState = field(default_factory=ViewState)
    """Selection and scroll of the list."""
    compared: ComparedRuns = field(default_factory=ComparedRuns)
    """Runs whose curves are laid over those of the first one that is shown."""
    opened: str | None = None
    """Command-line name of the run last opened from the list; None before the first."""


def make_run_list(hosts: Sequence[str], *, daemon: str | None, thin: bool | None) -> RunList:
    """The runs of these machines, or of this one where none is named.

    Args:
        hosts: as `--ssh` takes them.
        thin: see `LiveFeed`; None = as it is usual for the way.

    Raises:
        BadName: one is not a host.
        UsageError: several, of which one names a run.
    """
    machines: list[MachineRuns] = []
    for host in hosts:
        destination = parse_ssh_address(ssh_address_of(host))
        if destination.run and len(hosts) > 1:
            raise click.UsageError(f"--ssh {host}: with several machines, name no run; choose it in the list")
        machines.append(RemoteMachine(destination, daemon=daemon, thin=thin))
    return RunList(machines or [LocalMachine(thin=thin)])


def _follow(address: str | None, *, daemon: str | None, thin: bool | None) -> Feed:
    """Follow a run; one that is not there is waited for, and the feed says so.

    Raises:
        EsperError: another machine cannot be reached.
    """
    return LiveFeed(address, thin=is_remote_address(address) if thin is None else thin, remote_daemon=daemon)


def _ended_run(address: str | None, runs: RunList) -> tuple[MachineRuns, ListedRun] | None:
    """The run that a name or an address of `--ssh` means, where it has ended; else None."""
    host, name = "", address
    if address is not None and address.startswith("ssh://"):
        wanted = parse_ssh_address(address)
        host, name = wanted.login, wanted.run
    machine = next((machine for machine in runs.machines if machine.host == host), None)
    if name is None or machine is None or (not host and is_remote_address(name)):
        return None
    try:
        run = machine.find(name)
    except (RunNotFound, TunnelError):
        return None  # who follows it says that, and what else there is
    finally:
        runs.close()
    return None if run.live else (machine, run)


def find_named(
    addresses: Sequence[str], *, daemon: str | None, thin: bool | None
) -> list[tuple[MachineRuns, ListedRun]]:
    """The runs of these names and addresses of `--ssh`, live or ended.

    Raises:
        EsperError: there is none of a name, or its machine does not answer.
    """
    here: MachineRuns = LocalMachine(thin=thin)
    machines: dict[str, MachineRuns] = {}
    found = []
    for address in addresses:
        if not is_remote_address(address):
            found.append((here, here.find(address)))
            continue
        wanted = parse_ssh_address(address)
        if wanted.run is None:
            raise RunNotFound(f"{address} names no run; write ssh://{wanted.login}/RUN")
        key = f"{wanted.login}:{wanted.port}"
        machine = machines.setdefault(key, RemoteMachine(wanted, daemon=daemon, thin=thin))
        found.append((machine, machine.find(wanted.run)))
    for machine in machines.values():
        machine.close()
    return found


def open_named(address: str | None, runs: RunList, *, daemon: str | None, thin: bool | None) -> Feed:
    """Follow the run that is named, or open its recording; that of another machine is fetched.

    Raises:
        EsperError: another machine cannot be reached, or the recording cannot be read.
    """
    ended = _ended_run(address, runs)
    return _follow(address, daemon=daemon, thin=thin) if ended is None else ended[0].open(ended[1])


def open_first(address: str | None, choice: RunChoice, *, daemon: str | None, thin: bool | None) -> Feed:
    """The feed to begin with; where there is a choice, none, and the list of runs is the first screen.

    A run that is named is opened, one of another machine that has ended as a recording, which is fetched; so
    is the only live one of the only machine. Where there is no run at all, the first is waited for.

    Raises:
        EsperError: another machine cannot be reached, or the recording cannot be read.
    """
    machines = choice.runs.machines
    is_named = address is not None and (
        not address.startswith("ssh://") or parse_ssh_address(address).run is not None
    )
    if is_named:
        return open_named(address, choice.runs, daemon=daemon, thin=thin)
    choice.runs.wait()
    is_one = len(machines) == 1 and not machines[0].problem
    if is_one and (len(choice.runs.live) == 1 or not choice.runs.entries):
        choice.runs.close()
        return _follow(address, daemon=daemon, thin=thin)
    choice.is_start = True
    return NoFeed()
