"""A client with nothing but pyzmq and json: what any language can do."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import zmq

from esper_overwatch.protocol.runs import find_run

_numbers = itertools.count()


class Raw:
    """Sockets of every kind, closed at the end of the `with` block."""

    def __init__(self, name: str | None = None) -> None:
        connection = json.loads((find_run(name).path / "connection.json").read_text())
        self.endpoints: dict[str, str] = connection["endpoints"]
        self.context = zmq.Context()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def open(self, kind: int, name: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.set(zmq.RCVTIMEO, 300_000)
        socket.connect(self.endpoints[name])
        return socket

    def ask(self, name: str, method: str, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
        socket = self.open(zmq.REQ, name)
        socket.send_json({"jsonrpc": "2.0", "id": f"raw{next(_numbers)}", "method": method, **more})
        reply, *rest = socket.recv_multipart()
        socket.close()
        return json.loads(reply), rest

    def subscribe(self, *topics: bytes) -> zmq.Socket[bytes]:
        socket = self.open(zmq.SUB, "ev")
        for topic in topics:
            socket.subscribe(topic)
        return socket


def ipc_path(endpoint: str) -> Path:
    return Path(endpoint.removeprefix("ipc://"))
