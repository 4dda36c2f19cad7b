"""A run on another machine, through OpenSSH: its three sockets appear here as local ones.

`ssh HOST esper-daemon list --json` finds the run, `ssh -N -L …` ×3 carries the sockets. Nothing listens on a
port, and every login there may command. Never blocks: `step` looks at the two processes and starts the
next one, again after a tunnel's death.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from protocol.codec.addresses import SshDestination
from protocol.errors import EsperError, RunNotFound, TunnelError
from protocol.runs import choose_run
from protocol.storage.folders import socket_folder

from .child_process import ChildProcess
from .endpoint import NotReady, Target

DAEMON_VARIABLE = "ESPER_REMOTE_DAEMON"
"""The remote `esper-daemon`, where it is not on the PATH of a shell without a login."""
SOCKETS = ("ev", "qry", "ctl")
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
RELOOK_SECONDS = 3.0
SSH_FAILED = 255
NOT_FOUND = 127


def _options(*options: str) -> list[str]:
    return [word for option in options for word in ("-o", option)]


_OPTIONS = _options(
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ConnectTimeout=10",
    "LogLevel=ERROR",
    "RemoteCommand=none",
)
_COMMAND_OPTIONS = [*_OPTIONS, *_options("ClearAllForwardings=yes")]
"""For a command: forwards of the user's configuration are another session's, and their ports may be taken."""
_TUNNEL_OPTIONS = [*_OPTIONS, *_options("StreamLocalBindUnlink=yes", "StreamLocalBindMask=0177")]
"""For the sockets. Without `ExitOnForwardFailure`, which counts the forwards of the configuration, too."""


class _Row(msgspec.Struct):
    """What `esper-daemon list --json` prints of a run."""

    name: str
    id: str
    live: bool
    endpoints: dict[str, str] | None = None


class SshTunnel:
    """Finds the remote run and keeps its sockets open here; see `endpoint.TargetSource`.

    Args:
        destination: where, and which run.
        daemon: the remote program; None takes it from the environment.
    """

    is_remote = True
    patience_seconds = 90.0
    """Somebody may have to type a passphrase."""

    def __init__(self, destination: SshDestination, *, daemon: str | None = None) -> None:
        self._destination = destination
        self._daemon = daemon or os.environ.get(DAEMON_VARIABLE) or "esper-daemon"
        self._phase: Literal["idle", "asking", "opening", "open"] = "idle"
        self._listing: ChildProcess | None = None
        self._tunnel: ChildProcess | None = None
        self._folder: Path | None = None
        self._target: Target | None = None
        self._error: EsperError | None = None
        self._failures = 0
        self._next_at = 0.0
        self._give_up_at = 0.0
        self.is_gone = False

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
        self._phase = "idle"

    def _list_runs(self) -> None:
        command = f"{self._daemon} list --json"
        self._next_at = time.monotonic() + RELOOK_SECONDS
        if self._phase == "idle":
            self._phase = "asking"
        self._listing = self._start_ssh(
            [*_COMMAND_OPTIONS, *self._batch_options, *self._destination.arguments, command]
        )

    @property
    def _batch_options(self) -> list[str]:
        """Questions for a passphrase are for the first time only: later a screen is in the way."""
        return ["-o", "BatchMode=yes"] if self._target is not None or self._failures else []

    def _start_ssh(self, arguments: Sequence[str]) -> ChildProcess | None:
        try:
            return ChildProcess(["ssh", *arguments])
        except OSError as error:
            self._fail(_absent(error))
            return None

    def _on_answer(self, process: ChildProcess) -> None:
        self._listing = None
        try:
            with process:
                row = self._choose_run(process)
        except EsperError as error:
            self.is_gone = isinstance(error, RunNotFound)
            if self.is_gone or self._phase != "open":
                self._fail(error)
            return
        self.is_gone = False
        assert row.endpoints is not None
        paths = {name: row.endpoints[name].removeprefix("ipc://") for name in SOCKETS}
        if self._phase == "open" and self._target is not None and self._target.id == row.id:
            return
        self._open_tunnel(row, paths)

    def _choose_run(self, process: ChildProcess) -> _Row:
        """The run that is meant, of those that are live there.

        Raises:
            TunnelError: there is no answer, or not a list of runs.
            RunNotFound: no such run.
        """
        host, words = self._destination.login, process.last_words
        if process.code == SSH_FAILED:
            raise TunnelError(f"{host} cannot be reached: {words or 'ssh gave no reason'}")
        if process.code == NOT_FOUND:
            raise _not_on_path(host, self._daemon)
        if process.code != 0:
            raise TunnelError(
                f"{host}: {self._daemon} list ended with {process.code}: {words or 'no reason'}"
            )
        try:
            rows = [row for row in msgspec.json.decode(process.output, type=list[_Row]) if row.live]
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
        if self._tunnel is not None:
            self._tunnel.stop()
        if self._folder is None:
            self._folder = socket_folder(f"ssh-{secrets.token_hex(4)}")
        forwards = [word for name in SOCKETS for word in ("-L", f"{self._folder / name}:{paths[name]}")]
        for name in SOCKETS:
            (self._folder / name).unlink(missing_ok=True)
        self._target = Target(
            name=row.name,
            id=row.id,
            endpoints={name: f"ipc://{self._folder / name}" for name in SOCKETS},
        )
        self._phase = "opening"
        self._give_up_at = time.monotonic() + self.patience_seconds
        batch = ["-o", "BatchMode=yes"] if self._failures else []
        self._tunnel = self._start_ssh(
            ["-N", *_TUNNEL_OPTIONS, *batch, *forwards, *self._destination.arguments]
        )

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


def run_remotely(destination: SshDestination, arguments: Sequence[str], *, daemon: str | None = None) -> int:
    """Run `esper-daemon ARGUMENTS` on that machine, with this process's input and output; its exit code.

    Raises:
        TunnelError: it cannot be reached, or has no such program.
    """
    daemon = daemon or os.environ.get(DAEMON_VARIABLE) or "esper-daemon"
    command = f"{daemon} {shlex.join(arguments)}"
    try:
        done = subprocess.run(["ssh", *_COMMAND_OPTIONS, *destination.arguments, command])
    except OSError as error:
        raise _absent(error) from None
    if done.returncode == SSH_FAILED:
        raise TunnelError(f"{destination.login} cannot be reached")
    if done.returncode == NOT_FOUND:
        raise _not_on_path(destination.login, daemon)
    return done.returncode


def _absent(error: OSError) -> TunnelError:
    return TunnelError(f"ssh cannot be run here ({error.strerror}); install OpenSSH's client")


def _not_on_path(host: str, daemon: str) -> TunnelError:
    return TunnelError(
        f"{host} has no {daemon} on its PATH; say where it is: "
        "--remote-command /path/to/.venv/bin/esper-daemon"
    )
