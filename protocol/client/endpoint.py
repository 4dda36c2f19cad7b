"""A daemon to connect to, its connected sockets, and the base of what finds it (`TargetSource`)."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from esper_overwatch.protocol.codec.zmq_options import ZmqContext
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.storage.keys import KeyPair

STARTING_SECONDS = 10.0


REFUSED_EVENT = zmq.EVENT_HANDSHAKE_FAILED_AUTH
BROKEN_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_BROKEN_OFF = (errno.EPIPE, errno.ECONNRESET)
MAX_BROKEN_OFF = 4
"""Handshakes in a row that may break off before the key is blamed, about 1 s with libzmq's pauses: a daemon
that many strangers connect to closes the oldest that have not authenticated, and a newcomer may be one."""
MAX_BROKEN_OFF_AGAIN = 40
"""Limit once the key has been let in: then it is the key only where the daemon has got another one."""


class ConnectedSocket:
    """One connected socket; of an encrypted one it watches the handshakes from before its `connect` on.

    Args:
        socket: with CURVE set, where it is to be encrypted.
        key: what the client's key is called; empty where it is not encrypted.
        address: where it leads.
    """

    def __init__(self, socket: zmq.Socket[bytes], key: str, address: str) -> None:
        self.socket = socket
        self._key, self._address = key, address
        self._monitor: zmq.Socket[bytes] | None = None
        if key:
            self._monitor = socket.get_monitor_socket(
                REFUSED_EVENT | BROKEN_EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED,
                f"inproc://handshakes-{secrets.token_hex(8)}",
            )
            self._monitor.set(zmq.LINGER, 0)
        self._broken_off = 0
        self._patience = MAX_BROKEN_OFF

    def problem(self) -> str | None:
        """Describe why it cannot be connected, if that came to light since the last call. Never blocks."""
        while self._monitor is not None:
            try:
                report = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return None
            event = report["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._broken_off, self._patience = 0, MAX_BROKEN_OFF_AGAIN
                continue
            if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and report["value"] in _BROKEN_OFF:
                self._broken_off += 1
                if self._broken_off < self._patience:
                    continue
            self._broken_off = 0
            return self._describe(event)
        return None

    def _describe(self, event: int) -> str:
        if event == REFUSED_EVENT:
            return (
                f"{self._address} does not let key {self._key} in: it is not authorized there, or no longer; "
                f"run on that machine: esper-daemon keys authorize {self._key} PUBLIC --role ROLE"
            )
        return (
            f"{self._address} and key {self._key} do not understand each other: the key is for another "
            "server, or no gateway listens there; `esper-daemon keys list` on that machine shows its key"
        )

    def close(self) -> None:
        """Close it at once; what was not sent is dropped."""
        if self._monitor is not None:
            if not self.socket.closed:
                self.socket.disable_monitor()
            self._monitor.close(linger=0)
        self.socket.close(linger=0)


@dataclass(frozen=True)
class Target:
    """A daemon to connect to."""

    name: str
    """Name of the run; the address where only the daemon knows the run."""
    endpoints: Mapping[str, str]
    """`ev`, `qry`, `ctl`."""
    boot: str | None = None
    """The boot that is meant; None for any that answers."""
    id: str | None = None
    pid: int | None = None
    journal: Path | None = None
    """The run's `events.jsonl`, where it is on this machine."""
    key: KeyPair | None = None
    """Set, with what it is called, for an encrypted connection."""
    key_name: str = ""

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
        connected = ConnectedSocket(socket, self.key_name, self.name)
        if self.key is not None:
            socket.set(zmq.IPV6, 1)
            socket.set(zmq.CURVE_SERVERKEY, self.key.server.encode())
            socket.set(zmq.CURVE_PUBLICKEY, self.key.public.encode())
            socket.set(zmq.CURVE_SECRETKEY, self.key.secret.encode())
        socket.connect(self.endpoints[name])
        return connected


class NotReady(EsperError):
    """There will be a target soon, or an error that says why not; the text says what it waits for."""

    exit_code = 3


class TargetSource(Protocol):
    """Finds the daemon to connect to, again and again: after its end, its restart, a tunnel's death."""

    is_gone: bool = False
    """True if the daemon that was found last is known to be dead."""
    is_remote: bool = True
    """True if the run's files are on another machine."""
    patience_seconds: float = 0.0
    """Time to wait for the first target."""

    def find(self) -> Target:
        """The daemon at the moment; never blocks.

        Raises:
            NotReady: not yet.
            EsperError: why there is none; a later call looks again.
        """

    def step(self) -> None:
        """Keep up what carries the sockets here, such as a tunnel; cheap, never blocks."""
        return

    def close(self) -> None:
        """Release it."""
        return
