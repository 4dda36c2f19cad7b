"""The daemon's sockets with the options that all of them have; binding is the caller's.

libzmq 4.3.5 aborts the process where a peer leaves whose messages had reached the high water mark on a socket
with ZMTP heartbeats (its issue 3937). So the ROUTERs have a mark, which bounds what a flood can make us keep,
and no such heartbeats: on a Unix socket the kernel tells who has gone, on TCP its keepalive. The publisher
has heartbeats, which free the queues of frozen readers, and no mark on the little it receives.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import zmq

from .wire import HEARTBEAT_TOPIC, VIEW_TOPIC

RECEIVE_HIGH_WATER = 64
"""Messages that a connection may have waiting in memory here; what it sends beyond waits on its side."""
SEND_HIGH_WATER = 200
INBOUND_BYTES = 4 * 1024 * 1024
"""A larger message costs its sender the connection; one over `control.REQUEST_BYTES` still gets an answer."""
LINGER_MS = 500
MESSAGES_PER_TURN = 64
TOLD = (HEARTBEAT_TOPIC, VIEW_TOPIC)
"""Topics whose subscribers are counted; others are whatever a client may think of."""

Context = zmq.Context[zmq.Socket[bytes]]


def publisher(context: Context) -> zmq.Socket[bytes]:
    """XPUB that welcomes each subscriber of the heartbeat."""
    socket = _tuned(context.socket(zmq.XPUB))
    socket.set(zmq.XPUB_VERBOSER, 1)
    socket.set(zmq.XPUB_WELCOME_MSG, HEARTBEAT_TOPIC)
    socket.set(zmq.SNDHWM, SEND_HIGH_WATER)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.HEARTBEAT_IVL, 2_000)
    socket.set(zmq.HEARTBEAT_TIMEOUT, 6_000)
    return socket


def router(context: Context) -> zmq.Socket[bytes]:
    """ROUTER that says when an answer finds nobody."""
    socket = _tuned(context.socket(zmq.ROUTER))
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.RCVHWM, RECEIVE_HIGH_WATER)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 10)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
    return socket


def end(context: Context, patience_s: float = 2.0) -> None:
    """Close a context whose sockets are closed; one that libzmq does not let go of is left behind."""
    thread = threading.Thread(target=context.term, name="esper-term", daemon=True)
    thread.start()
    thread.join(patience_s)


def is_waiting(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received at once; `poll(0)`, at a tenth of its cost."""
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


class Audience:
    """How many subscribe to each topic of one publisher, by what it is told."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __getitem__(self, topic: bytes) -> int:
        return self._counts[topic]

    def update(self, socket: zmq.Socket[bytes]) -> None:
        """Take what the publisher has to tell; never blocks."""
        for _ in range(MESSAGES_PER_TURN):
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frame[1:] in TOLD:
                self._counts[frame[1:]] += 1 if frame[0] == 1 else -1


def _tuned(socket: Any) -> zmq.Socket[bytes]:
    found: zmq.Socket[bytes] = socket
    found.set(zmq.LINGER, LINGER_MS)
    found.set(zmq.MAXMSGSIZE, INBOUND_BYTES)
    found.set(zmq.HANDSHAKE_IVL, 10_000)
    return found
