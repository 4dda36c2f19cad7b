"""A run on another machine, through OpenSSH: its three sockets appear here as local ones.

`ssh HOST esper-daemon list --json` finds the run, `ssh -L …` ×3 carries the sockets. Nothing listens on a
port, and every login there may command. Never blocks: `step` looks at the two processes and starts the
next one, again after a tunnel's death.
"""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path
from typing import Literal

import msgspec

from esper_overwatch.protocol.codec.addresses import SshDestination
from esper_overwatch.protocol.errors import EsperError, RunNotFound, TunnelError
from esper_overwatch.protocol.runs import choose_run
from esper_overwatch.protocol.storage.folders import socket_folder

from .child_process import ChildProcess
from .endpoint import NotReady, Target, TargetSource
from .ssh_command import (
    BATCH,
    SSH_OPTIONS,
    RemoteCommand,
    SshProcess,
    forget_forwards,
    remote_daemon,
    ssh_options,
)

SOCKETS = ("ev", "qry", "ctl")
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
RELOOK_SECONDS = 3.0
_TUNNEL_OPTIONS = [*SSH_OPTIONS, *ssh_options("StreamLocalBindUnlink=yes", "StreamLocalBindMask=0177")]
"""For the sockets. Without `ExitOnForwardFailure`, which counts the forwards of the configuration, too."""


_HOLD = "cat"
"""Keeps the tunnel open until its input ends. `ssh -N` ends at once where it uses a shared connection."""


class _Row(msgspec.Struct):
    """One run as `esper-daemon list --json` prints it."""

    name: str
    id: str
    live: bool
    endpoints: dict[str, str] | None = None


class SshTunnel(TargetSource):
    """Finds the remote run and keeps its sockets open here; see `endpoint.TargetSource`.

    Args:
        destination: where, and which run.
        daemon: the remote program; None takes it from the environment.
        batch: whether ssh may never ask for a passphrase; else it may for the first time.
    """

    patience_seconds = 90.0
    """Somebody may have to type a passphrase."""

    def __init__(
        self, destination: SshDestination, *, daemon: str | None = None, batch: bool = False
    ) -> None:
        self._destination = destination
        self._daemon = remote_daemon(daemon)
        self._batch = batch
        self._phase: Literal["idle", "asking", "opening", "open"] = "idle"
        self._listing: RemoteCommand | None = None
        self._tunnel: ChildProcess | None = None
        self._forwards: list[str] = []
        self._folder: Path | None = None
        self._target: Target | None = None
        self._error: EsperError | None = None
        self._failures = 0
        self._next_at = 0.0
        self._give_up_at = 0.0

    def find(self) -> Target:
        """The run's daemon, by sockets on this machine; a later call asks the other machine again.

        Raises:
            NotReady: on the way.
            TunnelError: it cannot be reached, for now.
            RunNotFound: no such live run on that machine.
        """
        if self._error is not None and time.monotonic() >= self._next_at:
            self._error = None
        self.step()
        if self._error is not None:
            raise self._error
        if self._phase != "open" or self._target is None:
            raise NotReady(f"connecting to {self._destination.login}")
        if self._listing is None and time.monotonic() >= self._next_at:
            self._list_runs()
        return self._target

    def step(self) -> None:
        """Look at the processes; start the next one."""
        if self._listing is not None and self._listing.ended:
            self._on_answer(self._listing)
        if self._tunnel is not None:
            self._watch_tunnel(self._tunnel)
        if self._phase == "idle" and self._listing is None and time.monotonic() >= self._next_at:
            self._error = None
            self._list_runs()

    def close(self) -> None:
        """End the processes and remove the sockets."""
        self._stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _stop(self) -> None:
        for process in (self._listing, self._tunnel):
            if process is not None:
                process.stop()
        self._listing = self._tunnel = None
        if self._forwards:
            forget_forwards(self._destination, self._forwards)
            self._forwards = []
        self._phase = "idle"

    def _list_runs(self) -> None:
        self._next_at = time.monotonic() + RELOOK_SECONDS
        if self._phase == "idle":
            self._phase = "asking"
        try:
            self._listing = RemoteCommand(
                self._destination,
                ["list", "--json"],
                daemon=self._daemon,
                batch=self._batch or self._target is not None or self._failures > 0,
            )
        except TunnelError as error:
            self._fail(error)

    def _on_answer(self, listing: RemoteCommand) -> None:
        self._listing = None
        try:
            row = self._choose_run(listing)
        except EsperError as error:
            self.is_gone = isinstance(error, RunNotFound)
            if self.is_gone or self._phase != "open":
                self._fail(error)
            return
        finally:
            listing.stop()
        self.is_gone = False
        assert row.endpoints is not None
        paths = {name: row.endpoints[name].removeprefix("ipc://") for name in SOCKETS}
        if self._phase == "open" and self._target is not None and self._target.id == row.id:
            return
        self._open_tunnel(row, paths)

    def _choose_run(self, listing: RemoteCommand) -> _Row:
        """The run that is meant, of those that are live there.

        Raises:
            TunnelError: there is no answer, or not a list of runs.
            RunNotFound: no such run.
        """
        host = self._destination.login
        try:
            rows = [row for row in msgspec.json.decode(listing.output().read(), type=list[_Row]) if row.live]
        except msgspec.DecodeError as error:
            raise TunnelError(f"{host}: {self._daemon} list gave no list of runs: {error}") from None
        try:
            at_hand = next((row.id for row in rows if self._target and row.id == self._target.id), None)
            row = choose_run(rows, self._destination.run or at_hand)
        except RunNotFound as error:
            raise RunNotFound(f"{host}: {error}") from None
        if row.endpoints is None:
            raise TunnelError(f"{host}: run {row.name} is starting, or its esper-daemon is too old for --ssh")
        if not all(row.endpoints.get(name, "").startswith("ipc:///") for name in SOCKETS):
            raise TunnelError(f"{host}: run {row.name} names no sockets")
        return row

    def _open_tunnel(self, row: _Row, paths: dict[str, str]) -> None:
        self._stop()
        if self._folder is None:
            self._folder = socket_folder(f"ssh-{secrets.token_hex(4)}")
        self._forwards = [word for name in SOCKETS for word in ("-L", f"{self._folder / name}:{paths[name]}")]
        for name in SOCKETS:
            (self._folder / name).unlink(missing_ok=True)
        self._target = Target(
            name=row.name,
            id=row.id,
            endpoints={name: f"ipc://{self._folder / name}" for name in SOCKETS},
        )
        self._phase = "opening"
        self._give_up_at = time.monotonic() + self.patience_seconds
        batch = BATCH if self._batch or self._failures else []
        try:
            options = [*_TUNNEL_OPTIONS, *batch, *self._forwards]
            self._tunnel = SshProcess(self._destination, options, _HOLD, holds_input=True)
        except TunnelError as error:
            self._fail(error)

    def _watch_tunnel(self, process: ChildProcess) -> None:
        assert self._folder is not None
        if process.ended:
            self._tunnel = None
            with process:
                words = process.last_words or f"ssh ended with {process.code}"
            self._fail(TunnelError(f"the tunnel to {self._destination.login} broke: {words}"))
        elif self._phase == "opening" and all((self._folder / name).exists() for name in SOCKETS):
            self._phase, self._failures, self._error = "open", 0, None
            self._next_at = time.monotonic() + RELOOK_SECONDS
        elif self._phase == "opening" and time.monotonic() > self._give_up_at:
            words = process.last_words or f"no sockets within {self.patience_seconds:.0f} s"
            self._fail(TunnelError(f"the tunnel to {self._destination.login} does not open: {words}"))

    def _fail(self, error: EsperError) -> None:
        self._stop()
        self._error = error
        self._next_at = time.monotonic() + RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1
