"""The daemon on TCP: CURVE, an allow-list, a role per key. Off unless asked for; never without both.

Three ports from the one given: `qry`, `ctl`, `ev`. Every connection is authenticated by this module's ZAP
handler, in the I/O thread; every *message* is checked against the allow-list again, so a key that is revoked
stops counting at once. What a revoked subscriber would go on reading is cut by closing `ev` and binding it
anew: everybody has to authenticate again, and a reader repairs what it missed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

import psutil
import zmq
from zmq.utils import z85

from . import sockets
from .commands import Socket
from .keys import AllowList, KeysUnusable, server_pair
from .peer import Peer
from .sockets import Audience, Context
from .wire import Frames

logger = logging.getLogger(__name__)

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"esper"
PORTS: Mapping[str, int] = {"qry": 0, "ctl": 1, "ev": 2}
"""Which port each socket has, counted from the one given."""
LOOK_S = 0.2
SAY_S = 1.0
_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.*-]+):([0-9]{1,5})")


def endpoints_of(address: str) -> dict[str, str]:
    """The three endpoints behind `tcp://host:port`.

    Raises:
        KeysUnusable: it is no such address.
    """
    match = _ADDRESS.fullmatch(address)
    port = int(match[2]) if match else 0
    if match is None or not 0 < port <= 65_535 - max(PORTS.values()):
        raise KeysUnusable(f"{address!r} is no address; write tcp://HOST:PORT, the first of three ports")
    return {name: f"tcp://{match[1]}:{port + more}" for name, more in PORTS.items()}


def _holders(endpoints: Mapping[str, str]) -> str:
    """Which of the user's processes listen on those ports: often a worker of a daemon that was killed."""
    ports = {int(endpoint.rpartition(":")[2]) for endpoint in endpoints.values()}
    try:
        found = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr.port in ports
        }
    except psutil.Error:
        return ""
    return "; held by process " + ", ".join(map(str, sorted(found))) if found else ""


class Listener:
    """Sockets on TCP and who may use them. One thread owns it, after `open`.

    Args:
        address: `tcp://host:port`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._endpoints = endpoints_of(address)
        self._pair = server_pair()
        self.allowed = AllowList()
        for problem in self.allowed.problems:
            logger.warning("%s", problem)
        if not self.allowed.clients:
            raise KeysUnusable(
                f"{address}: nobody is authorized in {self.allowed.folder}; "
                "run: esper-daemon keys new NAME --role operator"
            )
        self.denied = 0
        """Connections that were turned away."""
        self.audience = Audience()
        self._look_at = self._said_at = 0.0
        self._ev: zmq.Socket[bytes] | None = None

    def open(self, context: Context) -> None:
        """Bind.

        Raises:
            KeysUnusable: an address cannot be bound.
        """
        self._context = context
        self._zap = context.socket(zmq.REP)
        self._zap.set(zmq.LINGER, 0)
        self._zap.bind(ZAP_ENDPOINT)
        try:
            self._qry = self._bind(sockets.router(context), "qry")
            self._ctl = self._bind(sockets.router(context), "ctl")
            self._ev = self._bind(sockets.publisher(context), "ev")
        except zmq.ZMQError as error:
            raise KeysUnusable(
                f"cannot listen on {self.address} and the next two ports: {error.strerror}"
                f"{_holders(self._endpoints)}"
            ) from None

    def _bind(self, socket: zmq.Socket[bytes], name: str) -> zmq.Socket[bytes]:
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._pair.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        try:
            socket.bind(self._endpoints[name])
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return socket

    # --- for the I/O thread ------------------------------------------------------------------------

    def register(self, poller: zmq.Poller) -> None:
        """Let the poller wake for the connections' handshakes and messages."""
        self._poller = poller
        for socket in (self._zap, self._qry, self._ctl, self._ev):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)

    @property
    def routers(self) -> tuple[tuple[Socket, zmq.Socket[bytes]], ...]:
        return (("ctl", self._ctl), ("qry", self._qry))

    @property
    def events(self) -> zmq.Socket[bytes] | None:
        """The publisher; None for the moment in which it is being bound anew."""
        return self._ev

    def peer(self, frame: zmq.Frame) -> Peer:
        """Who sent this message, by the allow-list of now."""
        try:
            public = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return Peer()
        client = self.allowed.clients.get(public)
        return Peer() if client is None else Peer(key=client.name, role=client.role)

    def send(self, frames: Frames) -> None:
        """To all subscribers; a slow one loses it."""
        if self._ev is not None:
            self._ev.send_multipart(frames, zmq.NOBLOCK)

    def authenticate(self) -> None:
        """Answer the handshakes that wait (ZAP, RFC 27)."""
        while True:
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._zap.send_multipart(self._judge(frames))

    def _judge(self, frames: list[bytes]) -> list[bytes]:
        version, request, domain, address, _, mechanism, *credentials = frames
        public = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        client = self.allowed.clients.get(public)
        if client is not None and domain == ZAP_DOMAIN:
            return [version, request, b"200", b"OK", public.encode(), b""]
        self.denied += 1
        if time.monotonic() - self._said_at > SAY_S:
            self._said_at = time.monotonic()
            logger.warning("%s was turned away: key %s is not authorized", address.decode(), public)
        return [version, request, b"400", b"this key is not authorized", b"", b""]

    def step(self, *, now: bool = False) -> None:
        """Read the allow-list again where it changed; bind `ev` again where it was closed."""
        at = time.monotonic()
        if self._ev is None:
            self._bind_events()
        if now or at >= self._look_at:
            self._look_at = at + LOOK_S
            if now or self.allowed.changed:
                self._reload()

    def _reload(self) -> None:
        revoked = self.allowed.reload()
        names = ", ".join(one.name for one in revoked) or "none"
        logger.info("%d keys are authorized; revoked: %s", len(self.allowed.clients), names)
        for problem in self.allowed.problems:
            logger.warning("%s", problem)
        if revoked and self._ev is not None:
            self._poller.unregister(self._ev)
            self._ev.close(linger=0)
            self._ev = None
            self.audience = Audience()

    def _bind_events(self) -> None:
        """The port is free once libzmq's own thread has closed it; until then, the next turn tries again."""
        try:
            self._ev = self._bind(sockets.publisher(self._context), "ev")
        except zmq.ZMQError:
            return
        self._poller.register(self._ev, zmq.POLLIN)

    def status(self) -> dict[str, object]:
        """For the method `status`."""
        return {"address": self.address, "authorized": len(self.allowed.clients), "denied": self.denied}
