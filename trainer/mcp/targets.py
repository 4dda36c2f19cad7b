"""Runs that tools mean: one of this machine, or the one that the server was started for."""

from __future__ import annotations

from dataclasses import dataclass

from esper_overwatch import connect
from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.event_log import EventLog, open_event_log
from esper_overwatch.protocol.errors import BadName, RunNotFound
from esper_overwatch.protocol.runs import RunInfo, find_run
from esper_overwatch.protocol.version import __version__

CLIENT_NAME = f"mcp/{__version__}"
"""How the server calls itself in the audit events."""


@dataclass(frozen=True)
class Targets:
    """Runs that the tools may be about."""

    pinned: str | None = None
    """The only one, by name or address; None for all runs on this machine."""

    @property
    def is_remote(self) -> bool:
        """True if the run is reached by a port only."""
        return self.pinned is not None and "://" in self.pinned

    def address(self, run: str | None) -> str | None:
        """Resolve a tool's RUN: a name or id, or the beginning of one.

        Raises:
            BadName: an address; tools do not choose other machines.
            RunNotFound: the server is for another run only.
        """
        if run is not None and "://" in run:
            raise BadName("give the name of a run; esper-daemon mcp is started with an address")
        if self.pinned is None or run is None:
            return run if self.pinned is None else self.pinned
        name, id_ = self._pinned_run()
        if not name.startswith(run) and not id_.startswith(run):
            raise RunNotFound(f"no run {run} here; this server is for {name} only")
        return self.pinned

    def _pinned_run(self) -> tuple[str, str]:
        """Its name and id."""
        if not self.is_remote:
            found = find_run(self.pinned)
            return found.name, found.id
        with connect(self.pinned, client=CLIENT_NAME) as client:
            return client.run.name, client.run.id or client.run.name

    def local(self, run: str | None) -> RunInfo | None:
        """The run on this machine; None where it is elsewhere.

        Raises:
            RunNotFound: no such run.
        """
        address = self.address(run)
        return None if self.is_remote else find_run(address)

    def connect(self, run: str | None) -> Client:
        """Connect to the live run; raises what `esper_overwatch.connect` does."""
        address = self.address(run)
        if not self.is_remote:
            found = find_run(address)
            if not found.is_live:
                raise RunNotFound(f"run {found.name} is not live: {found.state}")
            address = found.name
        return connect(address, client=CLIENT_NAME)

    def open_log(self, run: str | None) -> EventLog:
        """The run's events, newest first or all; raises what `open_event_log` does."""
        return open_event_log(self.address(run), client=CLIENT_NAME)
