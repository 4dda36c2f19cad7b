"""Who asks: how often each connection may, and what `clients` tells of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from .peer import Peer

REQUESTS_PER_S = 100.0
BURST = 100.0
CONNECTIONS = 1024
"""Connections that are remembered; the one longest silent goes first."""


class _Connection:
    __slots__ = ("at", "client", "first", "last", "peer", "refused", "requests", "tokens")

    def __init__(self, peer: Peer, now: float) -> None:
        self.peer = peer
        self.client = ""
        self.tokens, self.at = BURST, now
        self.requests = self.refused = 0
        self.first = self.last = time.time_ns() // 1000


class Clients:
    """A bucket of tokens per connection, filled at `REQUESTS_PER_S`. One thread owns it."""

    def __init__(self) -> None:
        self._connections: OrderedDict[bytes, _Connection] = OrderedDict()
        self.refused = 0
        """Requests beyond the rate, of all connections."""

    def admit(self, connection: bytes, peer: Peer) -> float:
        """Count a message; seconds until the connection may send again, 0.0 where it is within its rate.

        Args:
            connection: the identity that the ROUTER gave it.
            peer: whose it is.
        """
        now = time.monotonic()
        one = self._connections.get(connection)
        if one is None:
            one = self._connections[connection] = _Connection(peer, now)
            if len(self._connections) > CONNECTIONS:
                self._connections.popitem(last=False)
        else:
            self._connections.move_to_end(connection)
        one.tokens = min(BURST, one.tokens + (now - one.at) * REQUESTS_PER_S)
        one.at = now
        if one.tokens < 1.0:
            one.refused += 1
            self.refused += 1
            return (1.0 - one.tokens) / REQUESTS_PER_S
        one.tokens -= 1.0
        one.requests += 1
        return 0.0

    def name(self, connection: bytes, client: str) -> None:
        """Remember how a connection calls itself, after a request that could be read."""
        one = self._connections.get(connection)
        if one is not None:
            one.client, one.last = client or one.client, time.time_ns() // 1000

    def list(self) -> list[dict[str, Any]]:
        """The connections summed up by client and process, the one heard last first."""
        found: dict[tuple[str, Peer], dict[str, Any]] = {}
        for one in self._connections.values():
            row = found.setdefault(
                (one.client, one.peer),
                {
                    "client": one.client, **asdict(one.peer), "first": one.first, "last": one.last,
                    "requests": 0, "refused": 0, "connections": 0,
                },
            )  # fmt: skip
            row["first"], row["last"] = min(row["first"], one.first), max(row["last"], one.last)
            row["requests"] += one.requests
            row["refused"] += one.refused
            row["connections"] += 1
        return sorted(found.values(), key=lambda row: -int(row["last"]))
