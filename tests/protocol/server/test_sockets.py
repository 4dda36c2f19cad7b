"""A hostile peer against libzmq and the daemon's sockets, by raw bytes of ZMTP."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys

from tests.protocol.sshd import free_ports

ROUTER = """
import sys
import zmq
from esper_overwatch.protocol.server.sockets import make_router
router = make_router(zmq.Context(), is_trusted=False)
router.bind(sys.argv[1])
print("ready", flush=True)
router.recv_multipart()
print("one", flush=True)
for line in sys.stdin:
    while router.poll(500):
        router.recv_multipart()
    print("all", flush=True)
"""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
MESSAGE = b"\x01\x00\x00\x05hello"
PING = b"\x04\x07\x04PING\x00\x0a"
NUM_MESSAGES = 200


def test_peer_that_pings_and_resets_aborts_nothing() -> None:
    """libzmq 4.3.5: `Assertion failed: !_io_error`, where it had paused the peer at a high water mark."""
    port = free_ports(1)
    words = [sys.executable, "-c", ROUTER, f"tcp://127.0.0.1:{port}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as router:
        assert router.stdin is not None
        assert router.stdout is not None
        assert router.stdout.readline() == "ready\n"
        with (
            socket.create_connection(("127.0.0.1", port), timeout=300) as peer,
            peer.makefile("rb") as answers,
        ):
            peer.sendall(GREETING)
            assert len(answers.read(64)) == 64
            peer.sendall(READY)
            assert answers.read1(200)
            peer.sendall(MESSAGE * NUM_MESSAGES + PING * 2)
            assert router.stdout.readline() == "one\n", "it has what was sent, and reads no more for now"
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for _ in range(2):
            router.stdin.write("read\n")
            router.stdin.flush()
            assert router.stdout.readline() == "all\n", "it is alive"
        router.stdin.close()
        assert router.wait(300) == 0
