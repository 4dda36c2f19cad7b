"""Where a client finds its run: on this machine (here), behind ssh (`tunnel`) or behind a port (`remote`).

An address is a text: a run's name, `ssh://user@host/run` or `tcp://key@host:port`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zmq

from .errors import EsperError, NoReply, RunNotFound
from .handshake import Handshakes
from .lock import holder_of
from .runs import RunInfo, find_run

STARTING_S = 10.0
STEP_S = 0.05


@dataclass(frozen=True)
class Curve:
    """The keys of an encrypted connection, Z85; `name` is what the client's key is called."""

    name: str
    server: str
    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Link:
    """One connected socket, and what is heard of its handshakes where it is encrypted."""

    socket: zmq.Socket[bytes]
    handshakes: Handshakes | None

    def problem(self) -> str | None:
        """Why it cannot be connected, where that came to light since the last call."""
        return None if self.handshakes is None else self.handshakes.problem()

    def close(self) -> None:
        if self.handshakes is not None:
            self.handshakes.close()
        self.socket.close(linger=0)


@dataclass(frozen=True)
class Target:
    """A daemon to connect to."""

    name: str
    """Of the run; of the address where only the daemon knows the run."""
    endpoints: Mapping[str, str]
    """`ev`, `qry`, `ctl`."""
    boot: str | None = None
    """The boot that is meant; None where whoever answers is."""
    id: str | None = None
    pid: int | None = None
    journal: Path | None = None
    """The run's `events.jsonl`, where it is on this machine."""
    curve: Curve | None = None

    def open(
        self, context: zmq.Context[zmq.Socket[bytes]], kind: int, name: str, topics: tuple[bytes, ...] = ()
    ) -> Link:
        """A socket of this kind, connected to `ev`, `qry` or `ctl`; without a peer it refuses to send."""
        socket = context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RECONNECT_IVL, 100)
        socket.set(zmq.RECONNECT_IVL_MAX, 2_000)
        if kind != zmq.SUB:
            socket.set(zmq.IMMEDIATE, 1)
        for topic in topics:
            socket.subscribe(topic)
        handshakes = None
        if self.curve is not None:
            handshakes = Handshakes(socket, self.curve.name, self.name)
            socket.set(zmq.IPV6, 1)
            socket.set(zmq.CURVE_SERVERKEY, self.curve.server.encode())
            socket.set(zmq.CURVE_PUBLICKEY, self.curve.public.encode())
            socket.set(zmq.CURVE_SECRETKEY, self.curve.secret.encode())
            socket.set(zmq.RECONNECT_STOP, zmq.RECONNECT_STOP_HANDSHAKE_FAILED)
        socket.connect(self.endpoints[name])
        return Link(socket, handshakes)


class NotReady(EsperError):
    """There will be a target soon, or an error that says why not; the text says what is waited for."""

    exit_code = 3


class Source(Protocol):
    """Finds the daemon to connect to, again and again: after its end, its restart, a tunnel's death."""

    @property
    def gone(self) -> bool:
        """Whether the daemon that was found last is known to be dead."""

    @property
    def remote(self) -> bool:
        """Whether the run's files are on another machine."""

    @property
    def patience_s(self) -> float:
        """How long to wait for the first target."""

    def find(self) -> Target:
        """The daemon at the moment; never blocks.

        Raises:
            NotReady: not yet.
            EsperError: why there is none; asked again, it looks again.
        """

    def step(self) -> None:
        """Keep up what is needed between here and there; cheap, never blocks."""

    def close(self) -> None:
        """Let go of it."""


class Local:
    """Runs of this user on this machine.

    Args:
        name: a run's name, id or the beginning of one; None for the newest live run, and after its end the
            next one.
        home: instead of `$ESPER_HOME`.
    """

    remote = False
    patience_s = STARTING_S

    def __init__(self, name: str | None, home: Path | None = None) -> None:
        self._name = name
        self._home = home
        self._at: RunInfo | None = None
        self.gone = False

    def find(self) -> Target:
        run = find_run(self._wanted(), live_only=True, home=self._home)
        if run.connection is None:
            raise NotReady(f"run {run.name} is starting")
        self._at, self.gone = run, False
        return Target(
            name=run.name,
            endpoints=run.connection.endpoints,
            boot=run.connection.boot,
            id=run.id,
            pid=run.pid,
            journal=run.path / "events.jsonl",
        )

    def _wanted(self) -> str | None:
        """The run asked for; without a name, the one at hand for as long as it lives."""
        if self._at is None:
            return self._name
        self.gone = holder_of(self._at.path / "lock") is None
        return self._at.name if self._name is not None or not self.gone else None

    def step(self) -> None:
        """Nothing is between here and there."""

    def close(self) -> None:
        """Nothing is held."""


def source_of(address: str | None, home: Path | None = None) -> Source:
    """What an address means.

    Raises:
        EsperError: it is none.
    """
    if address is not None and address.startswith("ssh://"):
        from .tunnel import Tunnel, parse

        return Tunnel(parse(address))
    if address is not None and address.startswith("tcp://"):
        from .remote import Remote

        return Remote(address)
    return Local(address, home)


def first_target(source: Source) -> Target:
    """Wait for the first daemon.

    Raises:
        RunNotFound: no such live run.
        NoReply: it is there and does not open.
        EsperError: it cannot be reached.
    """
    end = time.monotonic() + source.patience_s
    while True:
        try:
            return source.find()
        except NotReady as waiting:
            if time.monotonic() > end:
                raise NoReply(f"{waiting}; given up after {source.patience_s:g} s") from None
        time.sleep(STEP_S)


def is_remote(address: str | None) -> bool:
    """Whether an address leads off this machine."""
    return address is not None and "://" in address


def local_only(address: str | None, what: str) -> None:
    """Refuse an address where only files on this machine will do.

    Raises:
        RunNotFound: it is another machine's; says how to go on.
    """
    if is_remote(address):
        raise RunNotFound(f"{what} writes files next to it: run it on that machine, `esper-daemon {what}`")
