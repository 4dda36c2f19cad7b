"""Sends answers, and bounds what waits here for peers who ask and do not read."""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque

import zmq

from esper_overwatch.protocol.messages.roles import Peer

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 8 * 1024 * 1024
"""Limit of large answers that a peer (a TCP key, a process) has not taken; then it is `overloaded`."""
LARGE_BYTES = 2048
"""From here on an answer is not copied, and its view lives until libzmq has let go of it; smaller ones are
bounded by `sockets.REPLY_HIGH_WATER`."""
LOG_INTERVAL_SECONDS = 60.0


class ReplySender:
    """Sends the answers of one server. One thread owns it.

    Attributes:
        undelivered: answers that found nobody, or a peer with too many unread.
    """

    def __init__(self) -> None:
        self.undelivered = 0
        self._logged_at = float("-inf")
        self._waiting: dict[Peer, deque[tuple[weakref.ref[memoryview], int]]] = {}

    @property
    def waiting_bytes(self) -> int:
        """Bytes of large answers that libzmq holds."""
        for peer in list(self._waiting):
            self._forget_taken(peer)
        return sum(size for answers in self._waiting.values() for _, size in answers)

    def is_full(self, peer: Peer) -> bool:
        """True if a peer has to read before it may ask again."""
        if peer not in self._waiting:
            return False
        self._forget_taken(peer)
        return sum(size for _, size in self._waiting.get(peer, ())) >= MAX_WAITING_BYTES

    def _forget_taken(self, peer: Peer) -> None:
        left = deque([one for one in self._waiting[peer] if one[0]() is not None])
        if left:
            self._waiting[peer] = left
        else:
            del self._waiting[peer]

    def send(self, socket: zmq.Socket[bytes], reply: list[bytes], peer: Peer) -> None:
        """Send an answer, or count that it could not be sent; never waits."""
        try:
            size = len(reply[-1])
            if size < LARGE_BYTES:
                socket.send_multipart(reply, zmq.NOBLOCK)
                return
            # A view of its own for each answer: what pyzmq offers for this, a tracker, costs several locks.
            body = memoryview(reply[-1])
            socket.send_multipart([*reply[:-1], body], zmq.NOBLOCK, copy=False)
            self._waiting.setdefault(peer, deque()).append((weakref.ref(body), size))
        except zmq.ZMQError as error:
            self.undelivered += 1
            now = time.monotonic()
            if now - self._logged_at >= LOG_INTERVAL_SECONDS:
                self._logged_at = now
                logger.info(
                    "%d answers could not be delivered so far, the newest: %s",
                    self.undelivered,
                    error.strerror,
                )
