"""A run's sockets on TCP, for keys that are authorized, in a process of its own.

The gateway reads the run's Unix sockets as any local client does, and serves three ports from the one given:
`qry`, `ctl`, `ev`. CURVE encrypts every connection; a key that is not in the allow-list is refused in the
handshake. Each request is passed on with the name and the role of its key, which the run checks as it does
those of its other clients. What comes over the network can slow, fill or end this process; for the run it is
one more local client.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable

import zmq
from zmq.auth.thread import ThreadAuthenticator

from .client.endpoint import ConnectedSocket, Target
from .client.sources import LocalRuns
from .codec.addresses import endpoints_of
from .codec.frames import HEARTBEAT_TOPIC, TOPICS, VIEW_TOPIC
from .codec.zmq_options import ZmqContext, is_waiting
from .errors import EsperError, KeysUnusable, RequestError
from .machine.processes import describe_holders
from .messages.commands import Socket
from .messages.roles import Claim
from .server import sockets
from .server.admission import admit, encode_error, split_envelope
from .server.rate_limiter import RateLimiter
from .server.reply_sender import ReplySender
from .storage.folders import StrPath
from .storage.keys import AllowList, server_pair

logger = logging.getLogger(__name__)

TURN_MS = 100
KEYS_SECONDS = 0.2
FIND_SECONDS = 0.5
"""Between two looks for a run that is not live: each reads the folders of all runs."""
LOG_SECONDS = 1.0
MESSAGES_PER_TURN = 64
LAST_EVENTS_MS = 50
"""Silence after which a run that has ended has sent everything."""
MAX_LAST_SECONDS = 2.0
"""For one that has not ended, and has other sockets now."""
_ZAP_DOMAIN = "esper"
_ASKED: tuple[Socket, ...] = ("ctl", "qry")


class Gateway:
    """Serves one run, and its next boots, until `is_over`.

    Args:
        run: its name, id or the beginning of one; None for the newest live run, and after its end the next.
        address: `tcp://host:port`.
        home: instead of `$ESPER_HOME`.

    Raises:
        BadName: the address is none.
        KeysUnusable: it cannot be bound, there is no key, or nobody is authorized.
    """

    def __init__(self, run: str | None, address: str, home: StrPath | None = None) -> None:
        self.address = address
        self._endpoints = endpoints_of(address)
        self._secret = server_pair().secret.encode()
        self._allowed = AllowList()
        self._tell_problems()
        if not self._allowed.clients:
            raise KeysUnusable(
                f"{address}: nobody is authorized in {self._allowed.folder}; "
                "run: esper-daemon keys new NAME --role operator"
            )
        self._run, self._source = run, LocalRuns(run, home)
        self._target: Target | None = None
        self._known: tuple[int, int] | None = None
        self._inner: dict[str, ConnectedSocket] = {}
        self._outer: dict[str, zmq.Socket[bytes]] = {}
        self._is_viewed = False
        self._rates, self._replies = RateLimiter(), ReplySender()
        self._keys_at = self._find_at = self._logged_at = float("-inf")
        self._context: ZmqContext = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context, log=logger)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_ZAP_DOMAIN, self)
        try:
            self._bind()
        except zmq.ZMQError as error:
            ports = {int(endpoint.rpartition(":")[2]) for endpoint in self._endpoints.values()}
            self.close()
            raise KeysUnusable(
                f"cannot listen on {address} and the next two ports: {error.strerror}"
                f"{describe_holders(ports)}"
            ) from None

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Serve until it is over, which is asked ten times a second."""
        self._follow()
        logger.info("%s serves %s for %d keys", self.address, self._name, len(self._allowed.clients))
        while not is_over():
            self._wait()
            self._watch_keys()
            self._follow()
            self._pass_events()
            for name in _ASKED:
                self._pass_requests(name)
                self._pass_answers(name)

    def close(self) -> None:
        """Close all connections."""
        self._authenticator.stop()
        self._context.destroy(linger=0)

    @property
    def _name(self) -> str:
        return self._target.name if self._target else self._run or "the next run"

    def _wait(self) -> None:
        poller = zmq.Poller()
        for socket in (*self._outer.values(), *(one.socket for one in self._inner.values())):
            poller.register(socket, zmq.POLLIN)
        poller.poll(TURN_MS)

    def _bind(self) -> None:
        """Open the ports, which may take a while to be free after they were closed."""
        made: dict[str, zmq.Socket[bytes]] = {
            "ctl": sockets.make_router(self._context, is_trusted=False),
            "qry": sockets.make_router(self._context, is_trusted=False),
            "ev": sockets.make_publisher(self._context),
        }
        made["ev"].set(zmq.XPUB_VERBOSER, 0)  # it tells of a topic's first and last reader alone
        try:
            for name, socket in made.items():
                socket.set(zmq.IPV6, 1)
                socket.set(zmq.CURVE_SERVER, 1)
                socket.set(zmq.CURVE_SECRETKEY, self._secret)
                socket.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN.encode())
                socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
                socket.bind(self._endpoints[name])
        except zmq.ZMQError:
            for socket in made.values():
                socket.close(linger=0)
            raise
        self._outer, self._counts = made, sockets.SubscriberCounts()

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002
        """Whether a key may connect; pyzmq's authenticator asks, in a thread of its own."""
        if key.decode() in self._allowed.clients:
            return True
        if time.monotonic() - self._logged_at > LOG_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning("a connection was turned away: key %s is not authorized", key.decode())
        return False

    def _watch_keys(self) -> None:
        """Read the allow-list again where it changed; whoever is revoked is cut off with all others, who
        connect again and repair what they missed."""
        if time.monotonic() < self._keys_at:
            return
        self._keys_at = time.monotonic() + KEYS_SECONDS
        try:
            revoked = self._allowed.reload() if self._allowed.changed else []
        except OSError as error:
            logger.warning("%s cannot be read now: %s", self._allowed.folder, error.strerror)
            return
        if revoked:
            logger.info("revoked: %s", ", ".join(one.name for one in revoked))
            self._tell_problems()
            for socket in self._outer.values():
                socket.close(linger=0)
            self._outer = {}
        if not self._outer:
            try:
                self._bind()
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE:
                    raise

    def _tell_problems(self) -> None:
        for problem in self._allowed.problems:
            logger.warning("%s", problem)

    def _follow(self) -> None:
        """Connect to the run's sockets, again where it has others now."""
        if self._target is not None and self._signature() == self._known:
            return
        if self._target is None and time.monotonic() < self._find_at:
            return
        self._find_at = time.monotonic() + FIND_SECONDS
        try:
            target = self._source.find()
        except EsperError:
            target = None
        self._known = self._signature(target)
        if target is None or self._target is None or target.endpoints != self._target.endpoints:
            self._pass_last_events()
            for one in self._inner.values():
                one.close()
            self._inner = {}
            self._is_viewed = False
        self._target = target
        if target is not None and not self._inner:
            topics = (HEARTBEAT_TOPIC, *TOPICS.values())
            self._inner = {"ev": target.open(self._context, zmq.SUB, "ev", topics)}
            self._inner |= {name: target.open(self._context, zmq.DEALER, name) for name in _ASKED}

    def _signature(self, target: Target | None = None) -> tuple[int, int] | None:
        """Of the run's connection file, which is written anew where anything in it changes."""
        found = target or self._target
        if found is None or found.journal is None:
            return None
        try:
            status = os.stat(found.journal.with_name("connection.json"))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _pass_events(self) -> None:
        if not self._inner or not self._outer:
            return
        source, readers = self._inner["ev"].socket, self._outer["ev"]
        self._counts.update(readers)
        is_viewed = self._counts[VIEW_TOPIC] > 0
        if is_viewed != self._is_viewed:  # the run makes views only while somebody looks
            self._is_viewed = is_viewed
            source.subscribe(VIEW_TOPIC) if is_viewed else source.unsubscribe(VIEW_TOPIC)
        for _ in range(MESSAGES_PER_TURN):
            if not is_waiting(source):
                return
            readers.send_multipart(source.recv_multipart(copy=False), zmq.NOBLOCK, copy=False)

    def _pass_last_events(self) -> None:
        """Pass on what a run that has ended sent before, its last heartbeat with it: nothing repeats that."""
        end = time.monotonic() + MAX_LAST_SECONDS
        while self._inner and self._outer and time.monotonic() < end:
            if not self._inner["ev"].socket.poll(LAST_EVENTS_MS):
                return
            self._pass_events()

    def _pass_requests(self, name: Socket) -> None:
        router = self._outer.get(name)
        for _ in range(MESSAGES_PER_TURN):
            if router is None or not is_waiting(router):
                return
            message = router.recv_multipart(copy=False)
            client = self._allowed.clients.get(str(message[-1].get("User-Id")))
            if client is None:
                continue  # revoked a moment ago: its connection is closed with the next look at the list
            envelope, rest = split_envelope([frame.bytes for frame in message])
            claim = Claim(key=client.name, role=client.role, is_delimited=envelope[-1:] == [b""])
            try:
                admit(self._rates, envelope, rest, claim.peer, is_full=self._replies.is_full(claim.peer))
                self._pass_request(name, claim, [part for part in envelope if part], rest)
            except RequestError as error:
                boot = (self._target and self._target.boot) or ""
                body = rest[0] if len(rest) == 1 else b""
                self._replies.send(router, [*envelope, encode_error(boot, body, error)], claim.peer)

    def _pass_request(self, name: Socket, claim: Claim, route: list[bytes], rest: list[bytes]) -> None:
        """Raises RequestError: it cannot be passed on now."""
        if name not in self._inner:
            raise RequestError("not_found", f"{self._name} is not live there; the gateway waits for it")
        try:
            self._inner[name].socket.send_multipart([claim.encode(), *route, b"", *rest], zmq.NOBLOCK)
        except zmq.Again:
            self._known = None  # a killed run leaves its file as it was: look whether it lives
            raise RequestError(
                "overloaded", "the run does not take requests at present", {"retry_after_ms": 500}
            ) from None

    def _pass_answers(self, name: Socket) -> None:
        if name not in self._inner or name not in self._outer:
            return
        source = self._inner[name].socket
        for _ in range(MESSAGES_PER_TURN):
            if not is_waiting(source):
                return
            first, *frames = source.recv_multipart()
            claim, end = Claim.decode(first), frames.index(b"")
            assert claim is not None, "an answer comes with what was sent"
            envelope = frames[: end + claim.is_delimited]
            self._replies.send(self._outer[name], [*envelope, *frames[end + 1 :]], claim.peer)
