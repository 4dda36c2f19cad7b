"""Watch the open TCP connections, and close some where there are too many.

libzmq accepts whoever connects, and gives each 10 s to authenticate: without a cap a stranger could take all
file numbers of the process. Its monitors report the file number of every connection it accepts and closes; a
message carries the number that it came by, which shows that its connection has been authenticated.

libzmq reads a connection for as long as more comes, and keeps some 40 bytes for each byte of a topic, before
the thread that owns the socket sees the first. So another thread looks, in `close_floods`, at what the kernel
has received from each connection; the lock is for those two.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket as system
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import parse_monitor_message

from esper_overwatch.protocol.codec.zmq_options import ZmqContext, is_waiting

from .sockets import CANCELLATION, SUBSCRIPTION

MAX_CONNECTIONS = 256
"""Over the three ports together; a client has up to three."""
MAX_UNPROVEN = 64
"""Connections without a message yet, authenticated or not: beyond it the oldest is closed."""
MAX_TOPIC_BYTES = 4096
"""Size of all topics of a connection's subscriptions; beyond it the connection is closed."""


@dataclass(frozen=True)
class FloodLimits:
    """Limits of what a connection of a port may send, in bytes."""

    joining: int
    """Size of handshake and first messages, which count for nothing."""
    at_once: int
    """Beyond those, and beyond `per_second`."""
    per_second: int
    of_all: int
    """For all connections of the port together; beyond it those with more than `share` are closed."""
    share: int


_OF_REQUESTS = FloodLimits(65_536, 4 << 20, 1 << 20, 8 << 20, 512 << 10)
FLOOD_LIMITS = {
    "ev": FloodLimits(2048, 8 << 10, 1024, 16 << 10, 2048),
    "qry": _OF_REQUESTS,
    "ctl": _OF_REQUESTS,
}
"""A client of ours joins `ev` with 1 KiB; a request has at most 1 MiB, and there are 100 a second."""
_RECEIVED_BYTES = struct.Struct("=128xQ")
"""Offset of `tcpi_bytes_received` in the kernel's `struct tcp_info`."""
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_MONITORED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED


@dataclass
class _Connection:
    port: str
    """Name of the socket that accepted it."""
    received: int
    """Bytes when last looked at; at first, those that count for nothing."""
    key: str = ""
    """Public key that it was seen to have authenticated with."""
    topics: set[bytes] = field(default_factory=set)
    """That it is subscribed to."""
    level: float = 0.0
    """Bytes that it has sent faster than it may for long."""


class TcpConnections:
    """The open connections by file number, bounded. One thread owns it; another may call `close_floods`.

    Args:
        ports: those listened on; no connection of another port is ever closed.
        on_cut: called with the reason where a connection is closed.

    Attributes:
        limit: connections allowed: `MAX_CONNECTIONS`, or a quarter of the file numbers the process may have.
        cut: connections closed here.
        failed: handshakes that failed before a key was asked about: no encryption, another server's key, a
            wrong secret, silence.
    """

    def __init__(self, ports: set[int], on_cut: Callable[[str], None]) -> None:
        self._ports = ports
        self._on_cut = on_cut
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limit = max(6, min(MAX_CONNECTIONS, files // 4))
        self.max_unproven = min(MAX_UNPROVEN, self.limit // 2)
        self.max_per_key = self.limit // 2
        self.cut = self.failed = 0
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._copy = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Kept for `_close`, which has to work where no descriptor is left."""
        self._lock = threading.RLock()
        self._looked_at = time.monotonic()
        self._open: dict[int, _Connection] = {}
        self._subscriptions: deque[tuple[int, bytes]] = deque()
        """Noted and not taken yet: file number of the connection, and what it sent."""
        self._monitors: dict[str, tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unproven(self) -> int:
        """Connections that have not sent a message."""
        with self._lock:
            return sum(not one.key for one in self._open.values())

    @property
    def monitors(self) -> list[zmq.Socket[bytes]]:
        """Readable where something has happened."""
        return [monitor for _, monitor in self._monitors.values()]

    def watch(self, context: ZmqContext, socket: zmq.Socket[bytes], port: str) -> zmq.Socket[bytes]:
        """Count the connections of a socket, which is not bound yet; returns its monitor."""
        address = f"inproc://connections-{port}-{id(socket):x}"
        monitor = context.socket(zmq.PAIR)
        try:
            monitor.set(zmq.LINGER, 0)
            monitor.set(zmq.RCVHWM, 0)  # libzmq's own thread would wait for us to read
            socket.monitor(address, _MONITORED)
            monitor.connect(address)
        except BaseException:
            monitor.close(linger=0)
            raise
        self._monitors[port] = socket, monitor
        if port == "ev":
            self._subscriptions.clear()  # of a publisher before, whose file numbers others may have now
        return monitor

    def forget(self, port: str) -> zmq.Socket[bytes] | None:
        """Before a socket is closed: its connections are gone with it; returns its monitor, to be closed."""
        if port not in self._monitors:
            return None
        socket, monitor = self._monitors.pop(port)
        socket.disable_monitor()
        with self._lock:
            self._open = {fd: one for fd, one in self._open.items() if one.port != port}
        return monitor

    def note_message(self, frame: zmq.Frame, key: str) -> None:
        """A message has come, so its connection is authenticated; limits the connections of a key."""
        with contextlib.suppress(zmq.ZMQError, ValueError), self._lock:
            one = self._open.get(int(frame.get(zmq.SRCFD)))
            if one is not None:
                one.key = key

    def note_subscription(self, frame: zmq.Frame) -> None:
        """A connection subscribes to a topic, or no longer; `update` takes it. From any thread."""
        with contextlib.suppress(zmq.ZMQError, ValueError):
            self._subscriptions.append((int(frame.get(zmq.SRCFD)), frame.bytes))

    def num_subscribed(self, topic: bytes) -> int:
        """Count of connections subscribed to a topic."""
        with self._lock:
            return sum(topic in one.topics for one in self._open.values())

    def is_full_for(self, key: str) -> bool:
        """True if a key has all the connections that it may have. From any thread."""
        with self._lock:
            return bool(key) and sum(one.key == key for one in self._open.values()) >= self.max_per_key

    def close(self) -> None:
        """Give back the file numbers kept."""
        os.close(self._null)
        os.close(self._copy)

    def update(self) -> None:
        """Take what the monitors report and what was noted, then close what is too many."""
        with self._lock:
            # Counted first: by now the monitors have reported the connections that these came by.
            num_noted = len(self._subscriptions)
            for port, (_, monitor) in self._monitors.items():
                while is_waiting(monitor):
                    event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
                    if event["event"] & _FAILED:
                        self.failed += 1
                        continue
                    fd = int(event["value"])
                    self._open.pop(fd, None)
                    if event["event"] == zmq.EVENT_ACCEPTED:
                        self._open[fd] = _Connection(port, FLOOD_LIMITS[port].joining)
            for _ in range(num_noted):
                self._take_subscription(*self._subscriptions.popleft())
            self._enforce()

    def _take_subscription(self, fd: int, content: bytes) -> None:
        """Limit the bytes of a connection's topics together."""
        kind, topic, one = content[:1], content[1:], self._open.get(fd)
        if one is None:
            return
        if kind == CANCELLATION:
            one.topics.discard(topic)
        elif kind == SUBSCRIPTION:
            one.topics.add(topic)
            if sum(map(len, one.topics)) + len(one.topics) > MAX_TOPIC_BYTES:
                self._close(fd, f"the topics of a connection may have {MAX_TOPIC_BYTES} bytes")

    def close_floods(self) -> int:
        """Close connections that have sent more than a client has to say. From any thread.

        Returns:
            How many connections there were.
        """
        with self._lock:
            now = time.monotonic()
            seconds, self._looked_at = now - self._looked_at, now
            count = len(self._open)
            for port, limits in FLOOD_LIMITS.items():
                self._close_floods_of(port, limits, seconds)
            return count

    def _close_floods_of(self, port: str, limits: FloodLimits, seconds: float) -> None:
        open_ones = {fd: one for fd, one in self._open.items() if one.port == port}
        for fd, one in open_ones.items():
            received = _received_bytes(fd, one.received)
            one.level = max(0.0, one.level - seconds * limits.per_second) + received - one.received
            one.received = received
        crowded = sum(one.level for one in open_ones.values()) > limits.of_all
        for fd, one in open_ones.items():
            if one.level > (limits.share if crowded else limits.at_once):
                self._close(fd, f"a connection of {port} may send {limits.at_once} bytes at once")

    def _enforce(self) -> None:
        per_key: Counter[str] = Counter()
        for fd, one in list(self._open.items()):
            per_key[one.key] += bool(one.key)
            if one.key and per_key[one.key] > self.max_per_key:
                self._close(fd, f"a key may have {self.max_per_key} connections")
        unproven = [fd for fd, one in self._open.items() if not one.key]
        for fd in unproven[: max(0, len(unproven) - self.max_unproven)]:
            self._close(fd, f"{self.max_unproven} connections may be without a message")
        for fd in list(self._open)[self.limit :]:
            self._close(fd, f"there may be {self.limit} connections")

    def _close(self, fd: int, why: str) -> None:
        """Shut a connection down, upon which libzmq closes it.

        The number may be another file's by now: what is shut down is a copy that has been looked at, and a
        connection of these ports.
        """
        del self._open[fd]
        with contextlib.suppress(OSError):
            os.dup2(fd, self._copy, inheritable=False)
            try:
                connection = system.socket(fileno=self._copy)
                try:
                    own = connection.family in (system.AF_INET, system.AF_INET6)
                    if own and connection.getsockname()[1] in self._ports:
                        connection.shutdown(system.SHUT_RDWR)
                finally:
                    connection.detach()
            finally:
                os.dup2(self._null, self._copy, inheritable=False)
        self.cut += 1
        self._on_cut(why)


def _received_bytes(fd: int, before: int) -> int:
    """All that the kernel has received from a connection; `before` where it is open no longer."""
    try:
        one = system.socket(system.AF_INET, system.SOCK_STREAM, fileno=fd)  # or AF_INET6: it is only asked
    except OSError:
        return before
    try:
        info = one.getsockopt(system.IPPROTO_TCP, system.TCP_INFO, _RECEIVED_BYTES.size)
        received: int = _RECEIVED_BYTES.unpack(info)[0]
        return max(before, received)
    except (OSError, struct.error):
        return before
    finally:
        one.detach()
