"""The daemon on TCP: CURVE, an allow-list, a role per key. Off unless asked for; never without both.

Three ports from the one given: `qry`, `ctl`, `ev`. Every connection is authenticated by this module's ZAP
handler, in the I/O thread; every *message* is checked against the allow-list again, so a key that is revoked
stops counting at once. What a revoked subscriber would go on reading is cut by closing `ev` and binding it
again: every subscriber has to authenticate again, and a reader repairs what it missed. `ev` and its
handshakes belong to a thread and a libzmq context of their own (`event_forwarder`).
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter

import zmq
from zmq.utils import z85

from esper_overwatch.protocol.codec.addresses import endpoints_of
from esper_overwatch.protocol.codec.frames import Frames
from esper_overwatch.protocol.codec.zmq_options import ZmqContext, is_waiting
from esper_overwatch.protocol.errors import KeysUnusable
from esper_overwatch.protocol.messages.commands import Socket
from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.storage.keys import AllowList, server_pair

from . import sockets
from .event_forwarder import Attempt, EventForwarder
from .subscription_rates import BAN_SECONDS, SubscriptionRates
from .tcp_connections import TcpConnections

logger = logging.getLogger(__name__)

ZAP_DOMAIN = b"esper"
RELOAD_INTERVAL_SECONDS = 0.2
LOG_INTERVAL_SECONDS = 1.0
CUT_LOG_INTERVAL_SECONDS = 60.0
FLOOD_INTERVAL_SECONDS = 0.004
"""Between two looks at what connections have sent."""
IDLE_INTERVAL_SECONDS = 0.05
"""Interval while there is no connection."""
RECEIVE_BUFFER_BYTES = {"ev": 1024, "qry": 65_536, "ctl": 65_536}
"""The kernel's, per connection: all that it may send between two such looks, and after it was closed."""
MAX_REVOKED = 256


class TcpListener:
    """Sockets on TCP and who may use them. One thread owns it, after `open`; two more are its own.

    Args:
        address: `tcp://host:port`.
        attempt: runs the steps of the publisher's thread; see `faults.Faults.attempt`.

    Attributes:
        endpoints: `qry`, `ctl`, `ev`: that port and the next two.
    """

    def __init__(self, address: str, attempt: Attempt) -> None:
        self.address = address
        self.endpoints = endpoints_of(address)
        self._keys = server_pair()
        self.allowed = AllowList()
        for problem in self.allowed.problems:
            logger.warning("%s", problem)
        if not self.allowed.clients:
            raise KeysUnusable(
                f"{address}: nobody is authorized in {self.allowed.folder}; "
                "run: esper-daemon keys new NAME --role operator"
            )
        self._turned_away = Counter[str]()
        self._count_lock = threading.Lock()
        self._guard_failed = False
        self._revoked: dict[str, str] = {}
        """Names of keys that this boot has revoked, for the audit of those that are still connected."""
        ports = {int(endpoint.rpartition(":")[2]) for endpoint in self.endpoints.values()}
        self.connections = TcpConnections(ports, self._warn_of_cut)
        self._rates = SubscriptionRates()
        self._events = EventForwarder(self._note_subscriber, self._answer_handshakes, attempt)
        self._closing = threading.Event()
        self._flood_guard = threading.Thread(target=self._guard_floods, name="esper-floods", daemon=True)
        self._reload_at = 0.0
        self._logged_at = self._cut_logged_at = float("-inf")
        self._poller: zmq.Poller | None = None

    def open(self, context: ZmqContext) -> None:
        """Bind the three ports.

        Raises:
            KeysUnusable: an address cannot be bound.
        """
        self._zap = sockets.make_zap(context)
        try:
            self._qry = self._bind(context, sockets.make_router(context, is_trusted=False), "qry")
            self._ctl = self._bind(context, sockets.make_router(context, is_trusted=False), "ctl")
            events = self._events.context
            self._events.open(self._bind(events, sockets.make_publisher(events), "ev"))
        except zmq.ZMQError as error:
            ports = {int(endpoint.rpartition(":")[2]) for endpoint in self.endpoints.values()}
            raise KeysUnusable(
                f"cannot listen on {self.address} and the next two ports: {error.strerror}"
                f"{sockets.describe_holders(ports)}"
            ) from None
        self._flood_guard.start()

    def _guard_floods(self) -> None:
        """Look at what connections send, in a thread of its own: libzmq takes all that comes."""
        pause = IDLE_INTERVAL_SECONDS
        while not self._closing.wait(pause):
            begin = time.thread_time()
            try:
                pause = FLOOD_INTERVAL_SECONDS if self.connections.close_floods() else IDLE_INTERVAL_SECONDS
                pause = max(pause, 20 * (time.thread_time() - begin))  # at most 5 % of a core
            except Exception:
                if not self._guard_failed:
                    logger.exception("what connections send over TCP cannot be bounded at present")
                self._guard_failed = True

    def close(self) -> None:
        """Stop the thread, give back what is kept; the sockets are closed with their context."""
        self._closing.set()
        if self._flood_guard.is_alive():
            self._flood_guard.join()
        monitor = self.connections.forget("ev")
        if monitor is not None:
            monitor.close(linger=0)
        self._events.close()
        self.connections.close()

    def _bind(self, context: ZmqContext, socket: zmq.Socket[bytes], name: str) -> zmq.Socket[bytes]:
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.set(zmq.RCVBUF, RECEIVE_BUFFER_BYTES[name])
        try:
            monitor = self.connections.watch(context, socket, name)
            socket.bind(self.endpoints[name])
        except BaseException:
            unused = self.connections.forget(name)
            if unused is not None:
                unused.close(linger=0)
            socket.close(linger=0)
            raise
        if self._poller is not None:
            self._poller.register(monitor, zmq.POLLIN)
        return socket

    def register(self, poller: zmq.Poller) -> None:
        """Let the poller wake for the connections' handshakes and messages."""
        self._poller = poller
        for socket in (self._zap, self._qry, self._ctl, *self.connections.monitors):
            poller.register(socket, zmq.POLLIN)

    @property
    def routers(self) -> tuple[tuple[Socket, zmq.Socket[bytes]], ...]:
        """The request sockets, each with its name."""
        return (("ctl", self._ctl), ("qry", self._qry))

    def peer(self, frame: zmq.Frame) -> Peer:
        """Sender of this message, by the current allow-list."""
        try:
            public = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return Peer()
        self.connections.note_message(frame, public)
        client = self.allowed.clients.get(public)
        if client is None:
            return Peer(key=self._revoked.get(public))
        return Peer(key=client.name, role=client.role)

    def send(self, frames: Frames) -> None:
        """Send to all subscribers; a slow one loses it."""
        self._events.send(frames)

    def _note_subscriber(self, frame: zmq.Frame) -> None:
        """Count a subscriber, in the thread of the events."""
        try:
            public = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return
        self.connections.note_message(frame, public)
        self.connections.note_subscription(frame)
        if self._rates.note(public, len(frame)):
            self._warn_of_flood(public)

    def authenticate(self) -> None:
        """Answer the handshakes of `qry` and `ctl` that wait."""
        self._answer_handshakes(self._zap)

    def _answer_handshakes(self, zap: zmq.Socket[bytes]) -> None:
        """Answer those that wait (ZAP, RFC 27), also in the events' thread; whom it fails for comes again."""
        while is_waiting(zap):
            frames = zap.recv_multipart(zmq.NOBLOCK)
            end = frames.index(b"") + 1
            try:
                answer = self._authenticate(frames[end:])
            except Exception:
                again = [*frames[end : end + 2], b"300", b"again, please", b"", b""]
                zap.send_multipart([*frames[:end], *again], zmq.NOBLOCK)
                raise
            zap.send_multipart([*frames[:end], *answer], zmq.NOBLOCK)

    def _authenticate(self, frames: list[bytes]) -> list[bytes]:
        version, request, domain, address, _, mechanism, *credentials = frames
        public = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        client = self.allowed.clients.get(public)
        if self._rates.is_over(public) or self.connections.is_full_for(public):
            self._count("for now")
            return [version, request, b"500", b"too many subscriptions or connections", b"", b""]
        if client is not None and domain == ZAP_DOMAIN:
            return [version, request, b"200", b"OK", public.encode(), b""]
        self._count("unauthorized")
        if time.monotonic() - self._logged_at > LOG_INTERVAL_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning("%s was turned away: key %s is not authorized", address.decode(), public)
        return [version, request, b"400", b"this key is not authorized", b"", b""]

    def _count(self, why: str) -> None:
        """Two threads authenticate."""
        with self._count_lock:
            self._turned_away[why] += 1

    def reload_keys(self, now: bool = False) -> None:
        """Read the allow-list again where it changed.

        Args:
            now: read it in any case.

        Raises:
            OSError: it cannot be read at present; the one that was read last stays in force.
        """
        at = time.monotonic()
        if now or at >= self._reload_at:
            self._reload_at = at + RELOAD_INTERVAL_SECONDS
            if now or self.allowed.changed:
                self._reload()

    def _reload(self) -> None:
        revoked = self.allowed.reload()
        for one in revoked:
            self._revoked.pop(one.public, None)
            self._revoked[one.public] = one.name
        while len(self._revoked) > MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]
        if revoked:
            self._close_events()
        names = ", ".join(one.name for one in revoked) or "none"
        logger.info("%d keys are authorized; revoked: %s", len(self.allowed.clients), names)
        for problem in self.allowed.problems:
            logger.warning("%s", problem)

    def _close_events(self) -> None:
        """Cut all subscribers, those of revoked keys among them; `restore` opens the port again."""
        monitor = self.connections.forget("ev")
        if monitor is not None:
            if self._poller is not None:
                self._poller.unregister(monitor)
            monitor.close(linger=0)
        self._events.publish_on(None)

    def restore(self) -> None:
        """Bind `ev` again where it was closed: its port is free once libzmq's own thread has closed it.

        Raises:
            ZMQError: for another reason than that it is not free yet.
        """
        if self._events.has_publisher:
            return
        context = self._events.context
        try:
            self._events.publish_on(self._bind(context, sockets.make_publisher(context), "ev"))
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise

    def _warn_of_cut(self, why: str) -> None:
        if time.monotonic() - self._cut_logged_at > CUT_LOG_INTERVAL_SECONDS:
            self._cut_logged_at = time.monotonic()
            logger.warning(
                "%s: connections are closed, %d so far: %s", self.address, self.connections.cut, why
            )

    def _warn_of_flood(self, public: str) -> None:
        client = self.allowed.clients.get(public)
        logger.warning(
            "%s: key %s subscribes to too much and is not let in again for %.0f s; "
            "`esper-daemon keys revoke NAME` ends it",
            self.address,
            client.name if client else public,
            BAN_SECONDS,
        )

    @property
    def denied(self) -> int:
        """Connections that were turned away: keys that are not authorized or flood, and failed handshakes."""
        return self._turned_away.total() + self.connections.failed

    @property
    def num_put_off(self) -> int:
        """Handshakes refused for now: of keys that had too many connections or had subscribed to too much."""
        return self._turned_away["for now"]

    def status(self) -> dict[str, object]:
        """Figures for the method `status`."""
        connections = self.connections
        return {
            "address": self.address,
            "authorized": len(self.allowed.clients),
            "denied": self.denied,
            "connections": len(connections),
            "unproven": connections.unproven,
            "closed": connections.cut,
            "limits": {
                "connections": connections.limit,
                "unproven": connections.max_unproven,
                "per_key": connections.max_per_key,
            },
        }
