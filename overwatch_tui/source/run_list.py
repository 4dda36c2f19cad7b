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
from msgspec.structs import replace

from esper_overwatch.overwatch_tui.model.curves import BRIEF_TYPES, ComparedRun
from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.catalogue.entry import RunEntry
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.client.ssh_command import UNASKED, RemoteCommand, remote_daemon
from esper_overwatch.protocol.codec.addresses import SshDestination
from esper_overwatch.protocol.errors import RunNotFound, TunnelError
from esper_overwatch.protocol.journal.overview import RunOverview
from esper_overwatch.protocol.next_commands import next_commands
from esper_overwatch.protocol.runs import choose_run, find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, StrPath

from .curve_readers import CurveReader, from_elsewhere, from_journal, skip_damage
from .feed import Feed, LiveFeed
from .recording import FetchFeed
from .replay import ReplayFeed

LOCAL_SECONDS = 2.0
"""Time from a look at this machine's runs to the next one."""
SILENT_SECONDS = 2.5
"""After so long without a word, which `list --follow` sends each second, a machine does not answer."""
GIVE_UP_SECONDS = 20.0
"""After so long without a word a new connection is made: a shared one (`ControlMaster`) may hang on."""
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
"""Time to the next connection after the first, second, ... that failed or broke."""
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

    @property
    def silence(self) -> int | None:
        """Age of what `runs` says, where the machine no longer answers: seconds, from 60 on whole minutes."""

    def poll(self, *, batch: bool) -> bool:
        """Ask again when it is time, take in an answer; never blocks. True where something has changed."""

    def find(self, name: str) -> ListedRun:
        """The run of that name or id, or that alone begins so; waits for the machine to answer.

        Raises:
            EsperError: there is none, or no answer.
        """

    def open(self, run: ListedRun) -> Feed:
        """Follow the run if it is live, else its recording.

        Raises:
            EsperError: it cannot be opened.
        """

    def read_curves(self, run: ListedRun, mark: str, *, once: bool = False) -> CurveReader:
        """Read a run's curves for a comparison, where it has the letter `mark`.

        Args:
            once: up to now, and before there is a screen: ssh may ask for a passphrase.
        """

    def forgets_silent_failure(self) -> bool:
        """True where ssh has failed since it might not ask, and that has been forgotten: it may be let to."""

    def close(self) -> None:
        """End what runs in the background; the next poll begins it again."""


class LocalMachine:
    """Runs of this user on this machine, below `home` or `$ESPER_HOME`: a thread asks the catalogue."""

    host = ""
    problem = ""
    silence: int | None = None

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

    def find(self, name: str) -> ListedRun:
        found = find_run(name)
        return ListedRun(
            name=found.name, id=found.id, live=found.is_live, created=found.created, path=str(found.path)
        )

    def open(self, run: ListedRun) -> Feed:
        if run.live:
            return LiveFeed(run.name, thin=self._thin)
        return ReplayFeed(Path(run.path) / EVENTS_FILE, math.inf)

    def read_curves(self, run: ListedRun, mark: str, *, once: bool = False) -> CurveReader:
        events = JournalEvents(Path(run.path) / EVENTS_FILE)
        first = next(events.read(on_bad=skip_damage), None)
        begin = run.created if first is None else min(run.created, first.ts)
        return CurveReader(ComparedRun(mark, run.name, begin), from_journal(events, once=once))

    def forgets_silent_failure(self) -> bool:
        return False

    def close(self) -> None:
        """End nothing: the thread reads files only."""


def _listed(entry: RunEntry, path: str) -> ListedRun:
    return replace(msgspec.convert(entry, ListedRun, from_attributes=True), path=path)


class _Changes(Struct):
    """A line of `esper-daemon list --follow`: nothing where nothing has changed."""

    runs: list[ListedRun] | None = None
    """Those that are new or have changed; on the first line all."""
    gone: list[str] = []
    """Names of runs that are no longer there."""


class RemoteMachine:
    """Runs on another machine: it tells what changes by `esper-daemon list --follow`, through OpenSSH."""

    def __init__(
        self, destination: SshDestination, *, daemon: str | None = None, thin: bool | None = None
    ) -> None:
        self._destination = destination
        self._daemon = remote_daemon(daemon)
        self._thin = thin is not False
        self._listing: RemoteCommand | None = None
        self._known: dict[str, ListedRun] | None = None
        """Runs by name as this connection has told them; None before its first answer."""
        self._num_failures = 0
        self._next_at = 0.0
        self._asked_at: float | None = None
        """Since when it is asked without a pause."""
        self._heard_at = 0.0
        self._told: tuple[str, int | None] = ("", None)
        """Problem and silence as the poll before found them."""
        self.host = destination.login
        self.runs: Sequence[ListedRun] | None = None
        self.problem = ""

    @property
    def silence(self) -> int | None:
        now = time.monotonic()
        if self.runs is None or self._asked_at is None:
            return None
        if not self.problem and now - max(self._asked_at, self._heard_at) < SILENT_SECONDS:
            return None
        seconds = int(now - self._heard_at)
        return seconds if seconds < 60 else seconds // 60 * 60

    def poll(self, *, batch: bool) -> bool:
        has_news, now = False, time.monotonic()
        self._asked_at = self._asked_at or now
        try:
            if self._listing is None and now >= self._next_at:
                words = ["list", "--all", "--json", "--follow"]
                self._listing = self._command(words, batch=batch, is_piped=True)
            if self._listing is not None:
                has_news = self._listen(self._listing)
        except TunnelError as error:
            self._hang_up()
            self._next_at = now + RETRY_SECONDS[min(self._num_failures, len(RETRY_SECONDS) - 1)]
            self._num_failures += 1
            self.problem = str(error)
        before, self._told = self._told, (self.problem, self.silence)
        return has_news or self._told != before

    def _listen(self, listing: RemoteCommand) -> bool:
        """Take in what has come; True where the runs have changed.

        Raises:
            TunnelError: the connection is over, or brings no list of runs.
        """
        has_ended, has_news = listing.ended, False
        lines = listing.take_lines()
        for line in lines:
            has_news |= self._take(line)
        if has_ended and not lines:
            listing.check()
            raise TunnelError(f"{self.host}: esper-daemon list has ended")
        if self._known is not None and time.monotonic() - self._heard_at > GIVE_UP_SECONDS:
            raise TunnelError(f"{self.host} does not answer")
        return has_news

    def _take(self, line: bytes) -> bool:
        try:
            changes = msgspec.json.decode(line, type=_Changes)
        except msgspec.DecodeError as error:
            raise TunnelError(f"{self.host}: esper-daemon list gave no list of runs: {error}") from None
        self._heard_at = time.monotonic()
        if changes.runs is None:
            return False
        self._known = (self._known or {}) | {run.name: run for run in changes.runs}
        for name in changes.gone:
            self._known.pop(name, None)
        before, self.runs = self.runs, list(self._known.values())
        self.problem, self._num_failures = "", 0
        return self.runs != before

    def _command(self, words: Sequence[str], *, batch: bool, is_piped: bool = False) -> RemoteCommand:
        return RemoteCommand(self._destination, words, daemon=self._daemon, batch=batch, is_piped=is_piped)

    def find(self, name: str) -> ListedRun:
        RunList([self]).wait()
        if self.runs is None:
            raise TunnelError(self.problem or f"{self.host} does not answer")
        try:
            return choose_run(self.runs, name)
        except RunNotFound as error:
            raise RunNotFound(f"{self.host}: {error}") from None

    def open(self, run: ListedRun) -> Feed:
        port = f":{self._destination.port}" if self._destination.port else ""
        if run.live:
            address = f"ssh://{self.host}{port}/{run.name}"
            return LiveFeed(address, thin=self._thin, remote_daemon=self._daemon, batch=True)
        command = self._command(["replay", "--json", "--", run.name], batch=True)
        return FetchFeed(command, run.name, self.host, run.state)

    def read_curves(self, run: ListedRun, mark: str, *, once: bool = False) -> CurveReader:
        words = ["replay", "--json", *(["--follow"] if run.live and not once else [])]
        words += [word for name in BRIEF_TYPES for word in ("--type", name)]
        words += ["--", run.name]
        compared = ComparedRun(mark, f"{self.host}:{run.name}", run.created)
        coming = from_elsewhere(compared, lambda: self._command(words, batch=not once, is_piped=True))
        return CurveReader(compared, coming)

    def forgets_silent_failure(self) -> bool:
        if not any(words in self.problem for words in UNASKED):
            return False
        self.problem = ""
        self.close()
        return True

    def close(self) -> None:
        """End the connection; what is known stays, and its age counts from when it is asked again."""
        self._hang_up()
        self._asked_at, self._next_at = None, 0.0

    def _hang_up(self) -> None:
        listing, self._listing, self._known = self._listing, None, None
        if listing is not None:
            listing.stop()


class RunList:
    """The runs of all machines that are asked, the live ones first, then the newest."""

    def __init__(self, machines: Sequence[MachineRuns]) -> None:
        self.machines = machines
        self.entries: list[tuple[MachineRuns, ListedRun]] = []

    def poll(self, *, batch: bool = True) -> bool:
        """Keep up with all machines; True if something changed. With `batch` ssh asks for no passphrase."""
        changes = [machine.poll(batch=batch) for machine in self.machines]
        # A machine that was asked for one run before (`find`) has nothing new to tell of the others.
        num_known = sum(len(machine.runs or ()) for machine in self.machines)
        has_changed = any(changes) or num_known != len(self.entries)
        if has_changed:
            self._sort()
        return has_changed

    def _sort(self) -> None:
        found = [(machine, run) for machine in self.machines for run in machine.runs or ()]
        self.entries = sorted(found, key=_order)

    @property
    def is_answered(self) -> bool:
        """True once every machine has answered or failed."""
        return all(machine.runs is not None or machine.problem for machine in self.machines)

    def wait(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Poll until every machine has answered, before there is a screen: ssh may ask for a passphrase.

        Of several only those ask that have to, one after the other: what is typed for one is not another's.
        """
        end, batch = clock() + PATIENCE_SECONDS, len(self.machines) > 1
        while not self.is_answered and clock() < end:
            self.poll(batch=batch)
            time.sleep(0.01)
        for machine in self.machines:
            if batch and machine.forgets_silent_failure():
                RunList([machine]).wait(clock=clock)
            elif machine.runs is None and not machine.problem:
                machine.close()  # its question would stand on the screen
        self._sort()

    @property
    def live(self) -> list[ListedRun]:
        return [run for _, run in self.entries if run.live]

    def close(self) -> None:
        """End what runs in the background, while the list is not shown."""
        for machine in self.machines:
            machine.close()


def _order(entry: tuple[MachineRuns, ListedRun]) -> tuple[bool, int, str]:
    _, run = entry
    newest = run.created if run.live or run.overview is None else run.overview.ts
    return not run.live, -newest, run.name
