"""Answers to repeated requests: a repeated id gets the earlier answer, and no second effect."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import Reply

MAX_REMEMBERED = 1024
REMEMBERED_SECONDS = 600.0


def digest_of(body: bytes) -> bytes:
    """16 bytes that differ where two requests' bodies differ."""
    return hashlib.blake2b(body, digest_size=16).digest()


class ReplyCache:
    """The newest answers by their requests' ids. One thread owns it."""

    def __init__(self) -> None:
        self._replies: OrderedDict[str, tuple[float, bytes, Reply]] = OrderedDict()

    def get(self, id_: str, digest: bytes) -> Reply | None:
        """The answer given to this id before; None where there is none (any more).

        Raises:
            RequestError: the id came with another body.
        """
        now = time.monotonic()
        while self._replies and now - next(iter(self._replies.values()))[0] > REMEMBERED_SECONDS:
            self._replies.popitem(last=False)
        known = self._replies.get(id_)
        if known is None:
            return None
        if known[1] != digest:
            raise RequestError("id_reused", f"id {id_} was used before with another body; make a new id")
        return known[2]

    def add(self, id_: str, digest: bytes, reply: Reply) -> None:
        """Remember an answer; the oldest go."""
        self._replies[id_] = (time.monotonic(), digest, reply)
        while len(self._replies) > MAX_REMEMBERED:
            self._replies.popitem(last=False)
