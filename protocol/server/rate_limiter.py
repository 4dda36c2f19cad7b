"""A rate limit per connection or sender, and the answer to `clients`."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from esper_overwatch.protocol.messages.roles import Peer

REQUESTS_PER_SECOND = 100.0
BURST_REQUESTS = 100.0
MAX_CONNECTIONS = 1024
"""Connections that are remembered; the one silent for longest goes first."""


class _TokenBucket:
    __slots__ = ("at", "client", "first", "peer", "refused", "requests", "tokens")

    def __init__(self, peer: Peer, tokens: float, now: float) -> None:
        self.peer = peer
        self.client = ""
        self.tokens, self.at, self.first = tokens, now, now
        self.requests = self.refused = 0


class RateLimiter:
    """A bucket of tokens per connection, filled at a rate. One thread owns it.

    Args:
        per_second: tokens; each request takes one.
        burst: tokens of a full bucket.
    """

    def __init__(self, per_second: float = REQUESTS_PER_SECOND, burst: float = BURST_REQUESTS) -> None:
        self._per_second, self._burst = per_second, burst
        self._connections: OrderedDict[bytes, _TokenBucket] = OrderedDict()
        self.refused = 0
        """Requests beyond the rate, of all connections."""

    def admit(self, connection: bytes, peer: Peer) -> float:
        """Count a message; seconds until the connection may send again, 0.0 where it is within its rate.

        Args:
            connection: the identity that the ROUTER gave it, or what else a rate is for.
            peer: whose it is.
        """
        now = time.monotonic()
        bucket = self._connections.get(connection)
        if bucket is None:
            bucket = self._connections[connection] = _TokenBucket(peer, self._burst, now)
            if len(self._connections) > MAX_CONNECTIONS:
                self._connections.popitem(last=False)
        else:
            self._connections.move_to_end(connection)
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_second)
        bucket.at = now
        if bucket.tokens < 1.0:
            bucket.refused += 1
            self.refused += 1
            return (1.0 - bucket.tokens) / self._per_second
        bucket.tokens -= 1.0
        bucket.requests += 1
        return 0.0

    def name(self, connection: bytes, client: str) -> None:
        """Remember how a connection calls itself, after a request that could be read."""
        bucket = self._connections.get(connection)
        if bucket is not None:
            bucket.client = client or bucket.client

    def list(self) -> list[dict[str, Any]]:
        """The connections summed up by client and process, the newest asker first."""
        found: dict[tuple[str, Peer], dict[str, Any]] = {}
        ahead = time.time_ns() // 1000 - int(1e6 * time.monotonic())  # now, since the wall clock may be set
        for bucket in self._connections.values():
            first, last = ahead + int(1e6 * bucket.first), ahead + int(1e6 * bucket.at)
            row = found.setdefault(
                (bucket.client, bucket.peer),
                {
                    "client": bucket.client,
                    **asdict(bucket.peer),
                    "first": first,
                    "last": last,
                    "requests": 0,
                    "refused": 0,
                    "connections": 0,
                },
            )
            row["first"], row["last"] = min(row["first"], first), max(row["last"], last)
            row["requests"] += bucket.requests
            row["refused"] += bucket.refused
            row["connections"] += 1
        return sorted(found.values(), key=lambda row: -int(row["last"]))
