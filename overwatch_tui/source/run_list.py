"""The runs of one machine or several: live, ended and published ones, asked for while a list is shown."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.catalogue.entry import RunEntry
from esper_overwatch.protocol.client.ssh_command import RemoteCommand, remote_daemon
from esper_overwatch.protocol.codec.addresses import SshDestination
from esper_overwatch.protocol.errors import EsperError, TunnelError
from esper_overwatch.protocol.journal.overview import RunOverview
from esper_overwatch.protocol.next_commands import next_commands
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, StrPath

from .feed import Feed, LiveFeed
from .recording import FetchFeed
from .replay import ReplayFeed

LOCAL_SECONDS, REMOTE_SECONDS = 2.0, 10.0
"""Time from an answer to the next question."""
PATIENCE_SECONDS = 90.0
"""Time to type a passphrase."""


class ListedRun(Struct, frozen=True):
    """A run as `esper-daemon list --json` tells it; older ones leave out some of it."""

    name: str
    id: str
    live: bool
    kind: str = "training"
    state: str = ""
    created: int = 0
    """Microseconds."""
    path: str = ""
    """Folder on its machine."""
    tags: Sequence[str] = ()
    project: str = ""
    overview: RunOverview | None = None
    damage: str = ""
    """What of its files cannot be read; empty = nothing that was looked at."""

    @property
    def next_commands(self) -> list[str]:
        """Commands to type next, the most useful first."""
        done = self.overview.done if self.overview else 0
        return next_commands(self.name, state=self.state, kind=self.kind, done=done)


class MachineRuns(Protocol):
    """The runs of a machine."""

    @property
    def host(self) -> str:
        """Host as ssh takes it; empty for this machine."""

    @property
    def runs(self) -> Sequence[ListedRun] | None:
        """Runs as last answered; None before the first answer."""

    @property
    def problem(self) -> str:
        """Why there is no answer; empty where there is one."""

    def poll(self, *, batch: bool) -> bool:
        """Ask again when it is time, take in an answer; never blocks. True where something has changed."""

    def ask_again(self) -> None:
        """Ask at the next poll."""

    def open(self, run: ListedRun) -> Feed:
        """Follow the run if it is live, else its recording.

        Raises:
            EsperError: it cannot be opened.
        """

    def close(self) -> None:
        """End what runs in the background."""


class LocalMachine:
    """Runs of this user on this machine, below `home` or `$ESPER_HOME`: a thread asks the catalogue."""

    host = ""
    problem = ""

    def __init__(self, home: StrPath | None = None, *, thin: bool | None = None) -> None:
        self._catalogue = Catalogue(home)
        self._thin = bool(thin)
        self._answer: list[ListedRun] | None = None
        self._thread: threading.Thread | None = None
        self._next_at = 0.0
        self.runs: Sequence[ListedRun] | None = None

    def poll(self, *, batch: bool) -> bool:  # noqa: ARG002 - nothing is asked of anybody
        if self._thread is None and time.monotonic() >= self._next_at:
            self._thread = threading.Thread(target=self._look, name="run-list", daemon=True)
            self._thread.start()
            return False
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        self._next_at = time.monotonic() + LOCAL_SECONDS
        has_changed = self._answer != self.runs
        self.runs = self._answer
        return has_changed

    def _look(self) -> None:
        entries = self._catalogue.entries()
        self._answer = [_listed(entry, str(self._catalogue.folder(entry))) for entry in entries]

    def ask_again(self) -> None:
        self._next_at = 0.0

    def open(self, run: ListedRun) -> Feed:
        if run.live:
            return LiveFeed(run.name, thin=self._thin)
        return ReplayFeed(Path(run.path) / EVENTS_FILE, math.inf)

    def close(self) -> None:
        """End nothing: the thread reads files only."""


def _listed(entry: RunEntry, path: str) -> ListedRun:
    return ListedRun(
        name=entry.name,
        id=entry.id,
        live=entry.live,
        kind=entry.kind,
        state=entry.state,
        created=entry.created,
        path=path,
        tags=entry.tags,
        project=entry.project,
        overview=entry.overview,
        damage=entry.damage,
    )


class RemoteMachine:
    """Runs on another machine: `esper-daemon list --all --json` there, through OpenSSH."""

    def __init__(
        self, destination: SshDestination, *, daemon: str | None = None, thin: bool | None = None
    ) -> None:
        self._destination = destination
        self._daemon = remote_daemon(daemon)
        self._thin = thin is not False
        self._listing: RemoteCommand | None = None
        self._next_at = 0.0
        self.host = destination.login
        self.runs: Sequence[ListedRun] | None = None
        self.problem = ""

    def poll(self, *, batch: bool) -> bool:
        if self._listing is None and time.monotonic() >= self._next_at:
            return self._ask(batch=batch)
        if self._listing is None or not self._listing.ended:
            return False
        listing, self._listing = self._listing, None
        self._next_at = time.monotonic() + REMOTE_SECONDS
        before = self.runs, self.problem
        try:
            self.runs, self.problem = _decode(self.host, listing.output().read()), ""
        except EsperError as error:
            self.problem = str(error)
        finally:
            listing.stop()
        return (self.runs, self.problem) != before

    def _ask(self, *, batch: bool) -> bool:
        try:
            self._listing = self._command(["list", "--all", "--json"], batch=batch)
        except TunnelError as error:
            self._next_at = time.monotonic() + REMOTE_SECONDS
            self.problem = str(error)
            return True
        return False

    def _command(self, words: Sequence[str], *, batch: bool) -> RemoteCommand:
        return RemoteCommand(self._destination, words, daemon=self._daemon, batch=batch)

    def ask_again(self) -> None:
        self._next_at = 0.0

    def open(self, run: ListedRun) -> Feed:
        port = f":{self._destination.port}" if self._destination.port else ""
        if run.live:
            address = f"ssh://{self.host}{port}/{run.name}"
            return LiveFeed(address, thin=self._thin, remote_daemon=self._daemon, batch=True)
        command = self._command(["replay", "--json", "--", run.name], batch=True)
        return FetchFeed(command, run.name, self.host, run.state)

    def close(self) -> None:
        """End the question that is under way."""
        if self._listing is not None:
            self._listing.stop()
            self._listing = None


def _decode(host: str, answer: bytes) -> list[ListedRun]:
    try:
        return msgspec.json.decode(answer, type=list[ListedRun])
    except msgspec.DecodeError as error:
        raise TunnelError(f"{host}: esper-daemon list gave no list of runs: {error}") from None


class RunList:
    """The runs of all machines that are asked, the live ones first, then the newest."""

    def __init__(self, machines: Sequence[MachineRuns]) -> None:
        self.machines = machines
        self.entries: list[tuple[MachineRuns, ListedRun]] = []

    def poll(self, *, batch: bool = True) -> bool:
        """Keep up with all machines; True if something changed. With `batch` ssh asks for no passphrase."""
        changes = [machine.poll(batch=batch) for machine in self.machines]
        if any(changes):
            found = [(machine, run) for machine in self.machines for run in machine.runs or ()]
            self.entries = sorted(found, key=_order)
        return any(changes)

    def ask_again(self) -> None:
        for machine in self.machines:
            machine.ask_again()

    @property
    def is_answered(self) -> bool:
        """True once every machine has answered or failed."""
        return all(machine.runs is not None or machine.problem for machine in self.machines)

    def wait(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Poll until every machine has answered, before there is a screen: ssh may ask for a passphrase."""
        end = clock() + PATIENCE_SECONDS
        while not self.is_answered and clock() < end:
            self.poll(batch=False)
            time.sleep(0.01)

    @property
    def live(self) -> list[ListedRun]:
        return [run for _, run in self.entries if run.live]

    def close(self) -> None:
        """End what runs in the background."""
        for machine in self.machines:
            machine.close()


def _order(entry: tuple[MachineRuns, ListedRun]) -> tuple[bool, int, str]:
    _, run = entry
    newest = run.created if run.live or run.overview is None else run.overview.ts
    return not run.live, -newest, run.name
