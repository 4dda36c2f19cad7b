"""Peers that no daemon would invite: they send garbage, take connections, and never read."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import zmq

from esper_overwatch.protocol.storage.keys import client_pair
from tests.protocol.raw import ipc_path

Address = Path | tuple[str, int]


class Peers:
    """Connections to one boot's sockets; `close` ends those that are still held.

    Args:
        endpoints: `connection.json`'s.
        port: the first of the three TCP ports.
    """

    def __init__(self, endpoints: dict[str, str], port: int) -> None:
        self.endpoints = endpoints
        self.port = port
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    @property
    def addresses(self) -> list[Address]:
        """All six doors."""
        unix: list[Address] = [ipc_path(endpoint) for endpoint in self.endpoints.values()]
        return [*unix, *(("127.0.0.1", self.port + n) for n in range(3))]

    def connect(self, address: Address) -> socket.socket | None:
        """A plain connection; None where it is refused, which is the daemon's right."""
        kind = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
        one = socket.socket(kind)
        one.settimeout(1.0)
        try:
            one.connect(str(address) if isinstance(address, Path) else address)
        except OSError:
            one.close()
            return None
        return one

    def send_garbage(self, rng: random.Random, times: int) -> int:
        """Bytes that are no greeting, greetings that break off, and frames that are no requests."""
        sent = 0
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
        for _ in range(times):
            for address in self.addresses:
                if (one := self.connect(address)) is None:
                    continue
                junk = rng.randbytes(rng.choice((1, 9, 64, 5_000, 70_000)))
                with one, contextlib.suppress(OSError):
                    one.sendall(greeting[: rng.choice((0, 10, 64))] + junk)
                    sent += 1
        return sent + self._send_frames(rng, times)

    def _send_frames(self, rng: random.Random, times: int) -> int:
        for name in ("qry", "ctl"):
            dealer = self._socket(zmq.DEALER, name)
            for _ in range(times):
                dealer.send_multipart(_hostile_request(rng))
        return 2 * times

    @contextlib.contextmanager
    def flood(self, rng: random.Random, count: int) -> Iterator[int]:
        """So many connections that say nothing, over all doors."""
        doors = self.addresses
        made = [self.connect(rng.choice(doors)) for _ in range(count)]
        held = [one for one in made if one is not None]
        try:
            yield len(held)
        finally:
            for one in held:
                one.close()

    def stop_reading(self, count: int) -> None:
        """Subscribers of everything and askers of the whole journal that read no byte, until `close`."""
        for n in range(count):
            for address in (self.endpoints["ev"], f"tcp://127.0.0.1:{self.port + 2}"):
                subscriber = self._socket(zmq.SUB, address)
                subscriber.subscribe(b"")
            asker = self._socket(zmq.DEALER, "qry")
            for stream in ("metric", "life"):
                params = {"stream": stream, "first": 1, "last": 10**9}
                request = {"jsonrpc": "2.0", "id": f"{n}{stream}", "method": "replay", "params": params}
                asker.send_multipart([b"", json.dumps(request).encode()])

    def _socket(self, kind: int, where: str) -> zmq.Socket[bytes]:
        one = self.context.socket(kind)
        one.set(zmq.LINGER, 0)
        one.set(zmq.RCVHWM, 1)
        one.set(zmq.SNDTIMEO, 2_000)
        address = self.endpoints.get(where, where)
        if address.startswith("tcp:"):
            _, pair = client_pair("watcher")
            one.set(zmq.CURVE_SERVERKEY, pair.server.encode())
            one.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
            one.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
        one.connect(address)
        return one

    def close(self) -> None:
        self.context.destroy(linger=0)


def _hostile_request(rng: random.Random) -> list[bytes]:
    whole = {"jsonrpc": "2.0", "id": "x", "method": "status", "params": {}}
    return rng.choice(
        [
            [rng.randbytes(50)],
            [b"", rng.randbytes(500)],
            [b"", b"[" * 5_000],
            [b"", b"\x00" * 20_000],
            [b""] * 30,
            [b"", json.dumps(whole | {"method": "\x1b]0;x\x07"}).encode()],
            [b"", json.dumps(whole | {"id": ["a"] * 50}).encode()],
            [b"", json.dumps(whole | {"params": {"\ud800": 1e308}}).encode()],
            [b"", json.dumps(whole)[: rng.randrange(40)].encode()],
        ]
    )
