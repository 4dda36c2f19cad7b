"""Who is at the other end of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """Who asked: told by the kernel on ipc, unknown elsewhere."""

    uid: int | None = None
    pid: int | None = None

    @classmethod
    def parse(cls, address: str) -> Peer:
        """From libzmq's `Peer-Address`: `localhost:<uid>:<gid>:<pid>` on ipc."""
        parts = address.split(":")
        if len(parts) != 4 or not (parts[1].isdecimal() and parts[3].isdecimal()):
            return cls()
        return cls(uid=int(parts[1]), pid=int(parts[3]))
