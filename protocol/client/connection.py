"""The sockets to a run's daemon: found, opened, identified, and found again after its end or restart."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import zmq

from esper_overwatch.protocol.codec.zmq_options import ZmqContext, terminate_context
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.commands import Reply
from esper_overwatch.protocol.messages.headers import Heartbeat
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.version import PROTOCOL_VERSION

from .endpoint import ConnectedSocket, Target, TargetSource
from .items import LinkState
from .requests import Body, PendingRequest, PendingRequests

_BY_SEVERITY: dict[str | None, LinkState] = {None: "live", "warning": "slow", "critical": "stale"}
LOST_AFTER_SECONDS = 15.0
FIND_INTERVAL_SECONDS = 0.5
REFUSED_RETRY_SECONDS = 5.0


class DaemonConnection(ABC):
    """A subscription and the request sockets of one client, its base. Never blocks; not thread-safe.

    Args:
        source: finds the run.
        client: how the client calls itself in the audit events.
        topics: to subscribe to.
        leases: as in `PendingRequests`.
    """

    def __init__(
        self,
        source: TargetSource,
        *,
        client: str,
        topics: Sequence[bytes],
        leases: dict[str, str] | None = None,
    ) -> None:
        self._source = source
        self._topics = tuple(topics)
        self._context: ZmqContext = zmq.Context()
        self._ev: ConnectedSocket | None = None
        self._lost_boot = self._unfound = False
        self._heartbeat_at = 0.0
        self._find_at = 0.0
        self._requests = PendingRequests(client, leases)
        self._target: Target | None = None
        """The daemon as it was found."""
        self.boot: str | None = None
        """The boot of the daemon that is followed."""
        self._is_reopened = False
        """True if another boot, or this one, was followed before."""
        self.problem: str | None = None
        """Why there is no connection, in words; None where there is one."""
        self.hello: dict[str, Any] | None = None
        """The daemon's description of itself."""
        self.heartbeat: Heartbeat | None = None
        """The newest one."""

    @abstractmethod
    def _on_open(self) -> None:
        """The sockets to a daemon were opened, another one's than before or again."""

    @abstractmethod
    def _on_close(self) -> None:
        """They were closed."""

    @abstractmethod
    def _on_hello(self) -> None:
        """The daemon has said who it is."""

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Open sockets, for a poller or an event loop; only `drain` reads from them."""
        return [*self._requests.sockets, *([self._ev.socket] if self._ev else [])]

    @property
    def age(self) -> float | None:
        """Seconds since the last heartbeat, None before the first."""
        return time.monotonic() - self._heartbeat_at if self.heartbeat else None

    @property
    def run(self) -> Target | None:
        """The run that is followed: as it was found, and since `hello` by its own name."""
        if self._target is None or self.hello is None:
            return self._target
        hello = self.hello
        return replace(self._target, name=hello["name"], id=hello["run"], pid=hello["pid"])

    def _link_state(self, *, is_joined: bool) -> LinkState:
        """State of the link, from the heartbeat and the run's lock.

        Args:
            is_joined: whether the streams have been joined.
        """
        if self._target is None:
            return "searching"
        if self.heartbeat is not None and self.heartbeat.bye is not None:
            return "ended"
        if self._source.is_gone or self.problem is not None:
            return "lost"
        if self.age is None or not is_joined:
            return "connecting"
        if self.age >= LOST_AFTER_SECONDS:
            return "lost"
        return _BY_SEVERITY[THRESHOLDS["link_age"].severity(self.age)]

    def _step(self) -> None:
        """Keep up the connection, and look for a daemon where there is none."""
        self._source.step()
        self._find()
        self._watch_handshakes()
        self._requests.step()

    def _receive(self) -> list[bytes] | None:
        """The frames of the next published message; None where none waits."""
        if self._ev is None:
            return None
        try:
            return self._ev.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _find(self) -> None:
        """Find a daemon where there is none, or the next boot where this one is silent or gone."""
        now = time.monotonic()
        has_ended = self.heartbeat is not None and self.heartbeat.bye is not None
        silent = self.age is None or self.age > THRESHOLDS["link_age"].warning
        if not silent and self._unfound:
            self.problem, self._unfound = None, False
        if now < self._find_at or not (silent or has_ended):
            return
        self._find_at = now + FIND_INTERVAL_SECONDS
        try:
            target = self._source.find()
        except EsperError as error:
            self.problem, self._unfound = str(error), True
            return
        if self._unfound:
            self.problem, self._unfound = None, False
        if self._lost_boot or target != self._target:
            self._open(target)

    def _open(self, target: Target) -> None:
        self._is_reopened = self.boot is not None
        self._close_sockets()
        self._target, self.boot, self._lost_boot = target, target.boot, False
        self.problem = self.heartbeat = self.hello = None
        self._ev = target.open(self._context, zmq.SUB, "ev", self._topics)
        self._requests.attach(self._context, target)
        self._on_open()

    def _watch_handshakes(self) -> None:
        """Report a key that is refused, and try again later."""
        found = self._requests.problem() or (self._ev.problem() if self._ev else None)
        if found is None:
            return
        self._close_sockets()
        self.problem, self.heartbeat, self._lost_boot = found, None, True
        self._find_at = time.monotonic() + REFUSED_RETRY_SECONDS

    def _take_heartbeat(self, heartbeat: Heartbeat) -> bool:
        """Note a heartbeat; False where it is another boot's, which is then followed instead."""
        if not self._claim_boot(heartbeat.boot):
            return False
        self.heartbeat = heartbeat
        self._heartbeat_at = time.monotonic()
        self._requests.check_clock(heartbeat.ts)
        return True

    def _claim_boot(self, boot: str) -> bool:
        """Follow this boot if none is followed yet; True if it is the followed one. Else start over."""
        if self.boot is None:
            self.boot = boot
        if boot != self.boot:
            self._lose_boot()
        return boot == self.boot

    def _lose_boot(self) -> None:
        """Another boot answers at this address: start over as soon as its connection file is found."""
        self._close_sockets()
        self._heartbeat_at, self.heartbeat = 0.0, None
        self._lost_boot = True
        self._find_at = 0.0

    def _ask_hello(self) -> None:
        """Ask the daemon who it is; `on_hello` follows its answer."""
        self._requests.submit(PendingRequest("hello", {}, self._take_hello, None))

    def _take_hello(self, request: PendingRequest, reply: Reply | None, _: Body) -> None:
        assert reply is not None
        assert request.sent is not None
        if reply.result is None or reply.result.get("protocol") != PROTOCOL_VERSION:
            theirs = (
                reply.error.message if reply.error else f"protocol {(reply.result or {}).get('protocol')}"
            )
            self.problem = f"the daemon does not speak protocol {PROTOCOL_VERSION}: {theirs}"
            self._close_sockets()
            return
        if not self._claim_boot(reply.meta.boot):
            return
        self.hello = reply.result
        half_way = time.time_ns() // 1000 - int((time.monotonic() - request.sent) / 2 * 1e6)
        self._requests.identify(reply.meta.boot, reply.meta.ts - half_way)
        self._on_hello()

    def _close_sockets(self) -> None:
        if self._ev is not None:
            self._ev.close()
            self._ev = None
        self._requests.detach()
        self._on_close()

    def close(self) -> None:
        """Close the sockets for good."""
        self._close_sockets()
        terminate_context(self._context)
