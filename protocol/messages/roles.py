"""Who is at the other end of a request, and what they may do."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
from msgspec import Struct

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each may do what those before it may."""


def is_allowed(role: Role | None, need: Role) -> bool:
    """True if this role is enough; None = not authorised."""
    return role is not None and ROLES.index(role) >= ROLES.index(need)


@dataclass(frozen=True)
class Peer:
    """Who asked: known from the kernel, or from a gateway's claim. Without a role it may do nothing."""

    uid: int | None = None
    pid: int | None = None
    key: str | None = None
    """The name of the key that authenticated a connection to a gateway."""
    role: Role | None = None

    @classmethod
    @functools.lru_cache(maxsize=64)
    def parse(cls, address: str, role: Role | None = None) -> Peer:
        """From libzmq's `Peer-Address`: `localhost:<uid>:<gid>:<pid>` on ipc."""
        parts = address.split(":")
        if len(parts) != 4 or not (parts[1].isdecimal() and parts[3].isdecimal()):
            return cls(role=role)
        return cls(uid=int(parts[1]), pid=int(parts[3]), role=role)


class Claim(Struct, frozen=True):
    """For whom a gateway asks: the frame before the envelope of a request that it passes on.

    Whoever may say so is the user of the run, who may do everything; by a claim a request may do less.
    """

    key: str
    role: Role
    is_delimited: bool = True
    """Whether the client's own envelope ends with an empty frame."""

    def encode(self) -> bytes:
        """The frame."""
        return _MARK + _encode(self)

    @classmethod
    def decode(cls, frame: bytes) -> Claim | None:
        """None where it is none.

        Raises:
            msgspec.DecodeError: it is a damaged one.
        """
        return _claim.decode(frame[len(_MARK) :]) if frame.startswith(_MARK) else None

    @property
    def peer(self) -> Peer:
        """Whose the request is."""
        return Peer(key=self.key, role=self.role)


_MARK = b"gateway "
_encode = msgspec.json.Encoder().encode
_claim = msgspec.json.Decoder(Claim)
