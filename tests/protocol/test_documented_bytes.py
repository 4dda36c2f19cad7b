"""The bytes that docs/reference/protocol.md gives to clients without libzmq, on the wire."""

from __future__ import annotations

import re
import socket as plain
from pathlib import Path

from zmq.utils import z85

from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.keys import KeyPair, make_client, write_secret
from tests.protocol.harness import serving
from tests.protocol.sshd import free_ports

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
SUB = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"


def test_documented_handshake_is_answered(server: Server, home: Path) -> None:
    secret, public = z85.encode(bytes(range(32))).decode(), "K3HW^WVq.zo69t)(umF>:XvwTj:QGN^yKlWaVH(S"
    make_client("laptop", server=None, role="viewer")
    key = home.with_name("config") / "esper" / "server.key"
    key.unlink()
    write_secret(key, KeyPair(public, secret))
    assert public in PAGE
    transient, box = (bytes.fromhex(found) for found in re.findall(r"`([0-9a-f]{64}|[0-9a-f]{160})`", PAGE))
    hello = b"\x05HELLO\x01\x00" + bytes(72) + transient + (1).to_bytes(8, "big") + box
    port = free_ports(3)
    with (
        serving(f"tcp://127.0.0.1:{port}", server.run.name),
        plain.create_connection(("127.0.0.1", port), timeout=300) as stranger,
    ):
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
        stranger.sendall(greeting + b"\x04" + bytes([len(hello)]) + hello)
        with stranger.makefile("rb") as answer:
            assert answer.read(64)[12:17] == b"CURVE"
            assert answer.read(2) == b"\x04" + bytes([168])
            assert answer.read(8) == b"\x07WELCOME"


def test_documented_heartbeat_comes_on_the_wire(server: Server) -> None:
    (ping,) = (bytes.fromhex(found) for found in re.findall(r"`([0-9a-f ]+) 0000` \(flags", PAGE))
    with plain.socket(plain.AF_UNIX) as reader:
        reader.connect(server.endpoints["ipc"]["ev"].removeprefix("ipc://"))  # type: ignore[index]
        reader.settimeout(300)
        reader.sendall(GREETING + SUB)
        content = b""
        while ping + b"\x00\x00" not in content:
            content = content[-16:] + reader.recv(4096)
