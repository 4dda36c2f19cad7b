"""Who is at the other end of a request, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each may do what those before it may."""


def is_allowed(role: Role | None, need: Role) -> bool:
    """True if this role is enough; None = not authorised."""
    return role is not None and ROLES.index(role) >= ROLES.index(need)


@dataclass(frozen=True)
class Peer:
    """Who asked: known from the kernel on ipc, from the key on tcp. Without a role it may do nothing."""

    uid: int | None = None
    pid: int | None = None
    key: str | None = None
    """The name of the key that authenticated a connection over tcp."""
    role: Role | None = None

    @classmethod
    def parse(cls, address: str, role: Role | None = None) -> Peer:
        """From libzmq's `Peer-Address`: `localhost:<uid>:<gid>:<pid>` on ipc."""
        parts = address.split(":")
        if len(parts) != 4 or not (parts[1].isdecimal() and parts[3].isdecimal()):
            return cls(role=role)
        return cls(uid=int(parts[1]), pid=int(parts[3]), role=role)
