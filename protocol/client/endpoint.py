"""A daemon to connect to, its connected sockets, and the interface of what finds it (`TargetSource`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zmq

from esper_overwatch.protocol.codec.zmq_options import ZmqContext
from esper_overwatch.protocol.errors import EsperError

from .handshake import HandshakeMonitor

STARTING_SECONDS = 10.0


@dataclass(frozen=True)
class CurveKeys:
    """The keys of an encrypted connection, Z85; `name` is what the client's key is called."""

    name: str
    server: str
    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class ConnectedSocket:
    """One connected socket, and what its handshakes report where it is encrypted."""

    socket: zmq.Socket[bytes]
    handshakes: HandshakeMonitor | None

    def problem(self) -> str | None:
        """Why it cannot be connected, where that came to light since the last call."""
        return None if self.handshakes is None else self.handshakes.problem()

    def close(self) -> None:
        """Close it at once; what was not sent is dropped."""
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
    """The boot that is meant; None for any that answers."""
    id: str | None = None
    pid: int | None = None
    journal: Path | None = None
    """The run's `events.jsonl`, where it is on this machine."""
    curve: CurveKeys | None = None

    def open(
        self, context: ZmqContext, kind: int, name: str, topics: tuple[bytes, ...] = ()
    ) -> ConnectedSocket:
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
            handshakes = HandshakeMonitor(socket, self.curve.name, self.name)
            socket.set(zmq.IPV6, 1)
            socket.set(zmq.CURVE_SERVERKEY, self.curve.server.encode())
            socket.set(zmq.CURVE_PUBLICKEY, self.curve.public.encode())
            socket.set(zmq.CURVE_SECRETKEY, self.curve.secret.encode())
        socket.connect(self.endpoints[name])
        return ConnectedSocket(socket, handshakes)


class NotReady(EsperError):
    """There will be a target soon, or an error that says why not; the text says what it waits for."""

    exit_code = 3


class TargetSource(Protocol):
    """Finds the daemon to connect to, again and again: after its end, its restart, a tunnel's death."""

    @property
    def is_gone(self) -> bool:
        """True if the daemon that was found last is known to be dead."""

    @property
    def is_remote(self) -> bool:
        """True if the run's files are on another machine."""

    @property
    def patience_seconds(self) -> float:
        """How long to wait for the first target."""

    def find(self) -> Target:
        """The daemon at the moment; never blocks.

        Raises:
            NotReady: not yet.
            EsperError: why there is none; a later call looks again.
        """

    def step(self) -> None:
        """Keep up what carries the sockets here, such as a tunnel; cheap, never blocks."""

    def close(self) -> None:
        """Release it."""
