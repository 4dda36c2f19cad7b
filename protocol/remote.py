"""A daemon that listens on TCP, from the client's side: `tcp://key@host:port`; see `target.Source`."""

from __future__ import annotations

import re

from .errors import BadName, EsperError
from .keys import client_pair
from .listener import endpoints_of
from .target import Curve, Target

_ADDRESS = re.compile(r"tcp://(?:([A-Za-z0-9][A-Za-z0-9_.-]*)@)?([^@/]+)/?")


class KeyRefused(EsperError):
    """The daemon does not let this key in, or is not the one that the key is for."""

    exit_code = 4


def with_key(address: str, key: str | None) -> str:
    """The address with the key's name in it.

    Raises:
        BadName: it is no address, or names another key.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise BadName(f"{address!r} is no address; write tcp://HOST:PORT")
    if key and match[1] and key != match[1]:
        raise BadName(f"two keys are named, {match[1]} and {key}; give one")
    named = key or match[1]
    return f"tcp://{named}@{match[2]}" if named else f"tcp://{match[2]}"


class Remote:
    """One daemon behind three ports.

    Args:
        address: `tcp://[key@]host:port`; without a key, the only one there is.

    Raises:
        BadName: no such address.
        KeysUnusable: there is no such key, or its file cannot be used.
    """

    remote = True
    patience_s = 0.0
    gone = False

    def __init__(self, address: str) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise BadName(f"{address!r} is no address; write tcp://HOST:PORT")
        name, pair = client_pair(match[1])
        self._target = Target(
            name=match[2],
            endpoints=endpoints_of(f"tcp://{match[2]}"),
            curve=Curve(name=name, server=pair.server, public=pair.public, secret=pair.secret),
        )

    def find(self) -> Target:
        """The same at any time: who answers there is learned from the answer."""
        return self._target

    def step(self) -> None:
        """libzmq connects again by itself."""

    def close(self) -> None:
        """Nothing is held."""
