"""A daemon that listens on TCP, seen from the client: `tcp://key@host:port`."""

from __future__ import annotations

from esper_overwatch.protocol.codec.addresses import endpoints_of, parse_tcp_address
from esper_overwatch.protocol.storage.keys import client_pair

from .endpoint import CurveKeys, Target


class TcpDaemon:
    """One daemon behind three ports.

    Args:
        address: `tcp://[key@]host:port`; without a key, the only one there is.

    Raises:
        BadName: no such address.
        KeysUnusable: there is no such key, or its file cannot be used.
    """

    is_remote = True
    patience_seconds = 0.0
    is_gone = False

    def __init__(self, address: str) -> None:
        key, where = parse_tcp_address(address)
        name, pair = client_pair(key)
        self._target = Target(
            name=where,
            endpoints=endpoints_of(f"tcp://{where}"),
            curve=CurveKeys(name=name, server=pair.server, public=pair.public, secret=pair.secret),
        )

    def find(self) -> Target:
        """Return the one target; its answer says which run it is."""
        return self._target

    def step(self) -> None:
        """libzmq connects again automatically."""

    def close(self) -> None:
        """Nothing to release."""
