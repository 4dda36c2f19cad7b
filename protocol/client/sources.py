"""The transport of an address: this machine, a port (both here) or OpenSSH (`ssh`).

An address is a text: a run's name, `ssh://user@host/run` or `tcp://key@host:port`.
"""

from __future__ import annotations

import time

from esper_overwatch.protocol.codec.addresses import endpoints_of, parse_ssh_address, parse_tcp_address
from esper_overwatch.protocol.errors import NoReply
from esper_overwatch.protocol.runs import RunInfo, find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, StrPath
from esper_overwatch.protocol.storage.keys import client_pair
from esper_overwatch.protocol.storage.lock import holder_of

from .endpoint import STARTING_SECONDS, NotReady, Target, TargetSource
from .ssh import SshTunnel

STEP_SECONDS = 0.05


class LocalRuns(TargetSource):
    """Runs of this user on this machine.

    Args:
        name: a run's name, id or the beginning of one; None for the newest live run, and after its end the
            next one.
        home: instead of `$ESPER_HOME`.
    """

    is_remote = False
    patience_seconds = STARTING_SECONDS

    def __init__(self, name: str | None, home: StrPath | None = None) -> None:
        self._name = name
        self._home = home
        self._current: RunInfo | None = None

    def find(self) -> Target:
        """The run's daemon as its connection file has it; see `TargetSource.find`."""
        run = find_run(self._run_to_find(), live_only=True, home=self._home)
        if run.connection is None:
            raise NotReady(f"run {run.name} is starting")
        self._current, self.is_gone = run, False
        return Target(
            name=run.name,
            endpoints=run.connection.endpoints,
            boot=run.connection.boot,
            id=run.id,
            pid=run.pid,
            journal=run.path / EVENTS_FILE,
        )

    def _run_to_find(self) -> str | None:
        """The run asked for; without a name, the one at hand for as long as it lives."""
        if self._current is None:
            return self._name
        self.is_gone = holder_of(self._current.path / "lock") is None
        return self._current.name if self._name is not None or not self.is_gone else None


class TcpDaemon(TargetSource):
    """One daemon behind three ports.

    Args:
        address: `tcp://[key@]host:port`; without a key, the only one there is.

    Raises:
        BadName: no such address.
        KeysUnusable: there is no such key, or its file cannot be used.
    """

    def __init__(self, address: str) -> None:
        key, where = parse_tcp_address(address)
        name, pair = client_pair(key)
        self._target = Target(where, endpoints_of(f"tcp://{where}"), key=pair, key_name=name)

    def find(self) -> Target:
        """Return the one target; its answer says which run it is."""
        return self._target


def make_target_source(
    address: str | None,
    home: StrPath | None = None,
    *,
    remote_daemon: str | None = None,
    batch: bool = False,
) -> TargetSource:
    """Make the source of an address.

    Args:
        remote_daemon: command of esper-daemon behind ssh://.
        batch: ssh asks for nothing.

    Raises:
        EsperError: it is malformed, or its key cannot be used.
    """
    if address is not None and address.startswith("ssh://"):
        return SshTunnel(parse_ssh_address(address), daemon=remote_daemon, batch=batch)
    if address is not None and address.startswith("tcp://"):
        return TcpDaemon(address)
    return LocalRuns(address, home)


def wait_for_target(source: TargetSource) -> Target:
    """Wait for the first daemon.

    Raises:
        RunNotFound: no such live run.
        NoReply: it is there and does not open.
        EsperError: it cannot be reached.
    """
    end = time.monotonic() + source.patience_seconds
    while True:
        try:
            return source.find()
        except NotReady as waiting:
            if time.monotonic() > end:
                raise NoReply(f"{waiting}; given up after {source.patience_seconds:g} s") from None
        time.sleep(STEP_SECONDS)
