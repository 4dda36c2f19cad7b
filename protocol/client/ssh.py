"""A run on another machine, through OpenSSH: its three sockets appear here as sockets of one's own.

`ssh HOST esper-daemon list --json` finds the run, `ssh -N -L …` ×3 carries the sockets. Nothing listens on a
port, and whoever may log in there may steer. Never blocks: `step` looks at the two processes and starts the
next one, again after a tunnel's death.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from .errors import BadName, EsperError, RunNotFound
from .folders import socket_folder
from .runs import choose
from .target import NotReady, Target

DAEMON_VARIABLE = "ESPER_REMOTE_DAEMON"
"""What to run over there, where `esper-daemon` is not on the PATH of a shell that nobody logged in to."""
SOCKETS = ("ev", "qry", "ctl")
RETRY_S = (1.0, 2.0, 5.0, 10.0)
LOOK_AGAIN_S = 3.0
SSH_FAILED = 255
NOT_FOUND = 127
_DESTINATION = re.compile(
    r"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)"
)
_OPTIONS = (
    "-o", "ExitOnForwardFailure=yes",
    "-o", "StreamLocalBindUnlink=yes",
    "-o", "StreamLocalBindMask=0177",
    "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",
    "-o", "ConnectTimeout=10",
    "-o", "LogLevel=ERROR",
)  # fmt: skip
_PR_SET_PDEATHSIG = 1


class TunnelError(EsperError):
    """ssh is absent, the other machine cannot be reached, or there is no daemon's program on it."""

    exit_code = 3


@dataclass(frozen=True)
class Destination:
    """Where to log in, and which run is meant there (None: the newest live one)."""

    login: str
    """`[user@]host`, as ssh takes it; a name of the ssh configuration is one, too."""
    port: int | None = None
    run: str | None = None

    @property
    def arguments(self) -> list[str]:
        return [*(["-p", str(self.port)] if self.port else []), self.login]


class _Row(msgspec.Struct):
    """What `esper-daemon list --json` tells of a run."""

    name: str
    id: str
    live: bool
    endpoints: dict[str, str] | None = None


def parse(address: str) -> Destination:
    """`ssh://[user@]host[:port][/run]`.

    Raises:
        BadName: it is none.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise BadName(f"{address!r} is no address; write ssh://user@host:port/run") from None
    login = parts.netloc.removesuffix(f":{port}") if port else parts.netloc
    if not _DESTINATION.fullmatch(login):
        raise BadName(f"{address!r} names no host; write ssh://user@host/run")
    return Destination(login, port, unquote(parts.path.strip("/")) or None)


def address_of(text: str, run: str | None = None) -> str:
    """The address of `--ssh user@host[:run]`; a RUN given beside it counts as well.

    Raises:
        BadName: two different runs are named, or no host.
    """
    if text.startswith("ssh://"):
        return text if run is None else f"{text.rstrip('/')}/{run}"
    match = _DESTINATION.match(text)
    login = match[0] if match else ""
    named = text[len(login) + 1 :] or None
    if not login or text[len(login) : len(login) + 1] not in ("", ":"):
        raise BadName(f"{text!r} names no host; write user@host or user@host:run")
    if named and run and named != run:
        raise BadName(f"two runs are named, {named} and {run}; give one")
    wanted = named or run
    return f"ssh://{login}/{wanted}" if wanted else f"ssh://{login}"


class Tunnel:
    """Finds the run over there and keeps its sockets open here; see `target.Source`.

    Args:
        destination: where, and which run.
        daemon: the program over there; None asks the environment.
    """

    remote = True
    patience_s = 90.0
    """Somebody may have to type a passphrase."""

    def __init__(self, destination: Destination, *, daemon: str | None = None) -> None:
        self._to = destination
        self._daemon = daemon or os.environ.get(DAEMON_VARIABLE) or "esper-daemon"
        self._phase: Literal["idle", "asking", "opening", "open"] = "idle"
        self._asking: _Process | None = None
        self._carrying: _Process | None = None
        self._folder: Path | None = None
        self._target: Target | None = None
        self._error: EsperError | None = None
        self._failures = 0
        self._next = 0.0
        self.gone = False

    # --- target.Source -----------------------------------------------------------------------------

    def find(self) -> Target:
        """The run's daemon, by sockets on this machine. Whoever asks again hears nothing: ask over there.

        Raises:
            NotReady: on the way.
            TunnelError: it cannot be reached, for now.
            RunNotFound: no such live run over there.
        """
        if self._error is not None and time.monotonic() >= self._next:
            self._error = None
        self.step()
        if self._error is not None:
            raise self._error
        if self._phase != "open" or self._target is None:
            raise NotReady(f"connecting to {self._to.login}")
        if self._asking is None and time.monotonic() >= self._next:
            self._ask()
        return self._target

    def step(self) -> None:
        """Look at the processes; start the next one."""
        if self._asking is not None and self._asking.ended:
            self._heard(self._asking)
        if self._carrying is not None:
            self._watch(self._carrying)
        if self._phase == "idle" and self._asking is None and time.monotonic() >= self._next:
            self._error = None
            self._ask()

    def close(self) -> None:
        """End the processes and remove the sockets."""
        self._stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _stop(self) -> None:
        for process in (self._asking, self._carrying):
            if process is not None:
                process.stop()
        self._asking = self._carrying = None
        self._phase = "idle"

    # --- asking over there -------------------------------------------------------------------------

    def _ask(self) -> None:
        command = f"{self._daemon} list --json"
        self._next = time.monotonic() + LOOK_AGAIN_S
        if self._phase == "idle":
            self._phase = "asking"
        self._asking = self._start([*_OPTIONS, *self._batch, *self._to.arguments, command])

    @property
    def _batch(self) -> list[str]:
        """Questions for a passphrase are for the first time only: later a screen is in the way."""
        return ["-o", "BatchMode=yes"] if self._target is not None or self._failures else []

    def _start(self, arguments: Sequence[str]) -> _Process | None:
        try:
            return _Process(["ssh", *arguments])
        except OSError as error:
            self._fail(_absent(error))
            return None

    def _heard(self, process: _Process) -> None:
        self._asking = None
        try:
            with process:
                row = self._chosen(process)
        except EsperError as error:
            self.gone = isinstance(error, RunNotFound)
            if self.gone or self._phase != "open":
                self._fail(error)
            return
        self.gone = False
        assert row.endpoints is not None
        paths = {name: row.endpoints[name].removeprefix("ipc://") for name in SOCKETS}
        if self._phase == "open" and self._target is not None and self._target.id == row.id:
            return
        self._carry(row, paths)

    def _chosen(self, process: _Process) -> _Row:
        """The run that is meant, of those that live over there.

        Raises:
            TunnelError: the answer is none.
            RunNotFound: no such run.
        """
        host, words = self._to.login, process.last_words
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
            row = choose(rows, self._to.run or at_hand)
        except RunNotFound as error:
            raise RunNotFound(f"{host}: {error}") from None
        if row.endpoints is None:
            raise TunnelError(f"{host}: run {row.name} is starting, or its esper-daemon is too old for --ssh")
        if not all(row.endpoints.get(name, "").startswith("ipc:///") for name in SOCKETS):
            raise TunnelError(f"{host}: run {row.name} names no sockets")
        return row

    # --- carrying the sockets ----------------------------------------------------------------------

    def _carry(self, row: _Row, paths: dict[str, str]) -> None:
        if self._carrying is not None:
            self._carrying.stop()
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
        batch = ["-o", "BatchMode=yes"] if self._failures else []
        self._carrying = self._start(["-N", *_OPTIONS, *batch, *forwards, *self._to.arguments])

    def _watch(self, process: _Process) -> None:
        assert self._folder is not None
        if process.ended:
            self._carrying = None
            with process:
                words = process.last_words or f"ssh ended with {process.code}"
            self._fail(TunnelError(f"the tunnel to {self._to.login} broke: {words}"))
        elif self._phase == "opening" and all((self._folder / name).exists() for name in SOCKETS):
            self._phase, self._failures, self._error = "open", 0, None
            self._next = time.monotonic() + LOOK_AGAIN_S

    def _fail(self, error: EsperError) -> None:
        self._stop()
        self._error = error
        self._next = time.monotonic() + RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1


class _Process:
    """One ssh; it ends with this process, however this one ends.

    Raises:
        OSError: it cannot be run.
    """

    def __init__(self, command: list[str]) -> None:
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            preexec_fn=_end_with_parent,
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def code(self) -> int | None:
        return self._process.returncode

    @property
    def output(self) -> bytes:
        self._out.seek(0)
        return self._out.read()

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        self._err.seek(0)
        lines = [line.strip() for line in self._err.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if not self.ended:
            self._process.terminate()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._out.close()
        self._err.close()


_libc: Any = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """In the child: ask Linux for SIGTERM at the parent's death."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def run_there(destination: Destination, arguments: Sequence[str]) -> int:
    """Run `esper-daemon ARGUMENTS` over there, with this process's input and output; its exit code.

    Raises:
        TunnelError: it cannot be reached, or has no such program.
    """
    daemon = os.environ.get(DAEMON_VARIABLE) or "esper-daemon"
    command = f"{daemon} {shlex.join(arguments)}"
    try:
        done = subprocess.run(["ssh", *_OPTIONS, *destination.arguments, command])
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
