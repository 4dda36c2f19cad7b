"""The daemon's sockets with the options that all of them have; binding is the caller's.

libzmq 4.3.5 aborts the process where a peer leaves whose messages had reached the high water mark, if a ZMTP
heartbeat is to be sent or answered then (its issue 3937). So no ROUTER sends any: on a Unix socket the kernel
reports a peer that has gone, on TCP its keepalive does. A peer can send one all the same: so the ROUTERs over
TCP have no mark, and the gateway's memory is bounded as a whole. Those on Unix sockets, whose peers are
trusted, have one, which bounds what a flood can make us keep. The publisher has heartbeats, which free the
queues of frozen readers, and no mark on the little it receives.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import zmq

from esper_overwatch.protocol.codec.frames import HEARTBEAT_TOPIC, VIEW_TOPIC
from esper_overwatch.protocol.codec.zmq_options import ZmqContext, is_waiting

from .reply_sender import LARGE_BYTES

RECEIVE_HIGH_WATER = 64
"""Messages that a connection may have waiting in memory here; what it sends beyond waits on its side."""
SEND_HIGH_WATER = 200
REPLY_HIGH_WATER = 256
"""Answers that a connection may leave unread in memory here; the next ones are lost and counted."""
MAX_INBOUND_BYTES = 4 * 1024 * 1024
"""A larger message costs its sender the connection; one over `MAX_REQUEST_BYTES` still gets an answer."""
MAX_SUBSCRIPTION_BYTES = 512
"""A larger subscription costs its sender the connection: libzmq keeps some 50 bytes for each byte of a topic.
Smaller than the longest message of a CURVE handshake it cannot be."""
LINGER_MS = 500
MESSAGES_PER_TURN = 64
COUNTED_TOPICS = (HEARTBEAT_TOPIC, VIEW_TOPIC)
"""Topics whose subscribers are counted; a client may subscribe to any others as well."""
SUBSCRIPTION, CANCELLATION = b"\1", b"\0"
"""First bytes of what a publisher receives; an XSUB can send it messages with any other."""


def make_publisher(context: ZmqContext) -> zmq.Socket[bytes]:
    """XPUB that welcomes each subscriber of the heartbeat."""
    socket = _tuned(context.socket(zmq.XPUB))
    socket.set(zmq.XPUB_VERBOSER, 1)
    socket.set(zmq.XPUB_WELCOME_MSG, HEARTBEAT_TOPIC)
    socket.set(zmq.SNDHWM, SEND_HIGH_WATER)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, MAX_SUBSCRIPTION_BYTES)
    socket.set(zmq.HEARTBEAT_IVL, 2_000)
    socket.set(zmq.HEARTBEAT_TIMEOUT, 6_000)
    return socket


def make_router(context: ZmqContext, *, is_trusted: bool = True) -> zmq.Socket[bytes]:
    """ROUTER with `ROUTER_MANDATORY`: sending to a peer that has gone is an error.

    Args:
        is_trusted: its peers may be paused at a high water mark, with which a hostile one could abort us.
    """
    socket = _tuned(context.socket(zmq.ROUTER))
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.RCVHWM, RECEIVE_HIGH_WATER if is_trusted else 0)
    socket.set(zmq.SNDHWM, REPLY_HIGH_WATER)
    socket.copy_threshold = LARGE_BYTES
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 10)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
    return socket


class SubscriberCounts:
    """Count of subscribers to each topic of one publisher on a Unix socket, whose peers are trusted.

    A connection that goes shows as a cancellation of each of its topics, which does not say whose it was.
    """

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __getitem__(self, topic: bytes) -> int:
        return self._counts[topic]

    def update(self, publisher: zmq.Socket[bytes]) -> None:
        """Take some of the subscriptions that the publisher has received; never blocks."""
        for _ in range(MESSAGES_PER_TURN):
            if not is_waiting(publisher):
                return
            message = publisher.recv(zmq.NOBLOCK)
            kind, topic = message[:1], message[1:]
            if topic in COUNTED_TOPICS and kind in (SUBSCRIPTION, CANCELLATION):
                change = 1 if kind == SUBSCRIPTION else -1
                self._counts[topic] = max(0, self._counts[topic] + change)


def _tuned(socket: Any) -> zmq.Socket[bytes]:
    found: zmq.Socket[bytes] = socket
    found.set(zmq.LINGER, LINGER_MS)
    found.set(zmq.MAXMSGSIZE, MAX_INBOUND_BYTES)
    found.set(zmq.HANDSHAKE_IVL, 10_000)
    return found
