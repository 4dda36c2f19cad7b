"""More connections than a daemon may have file numbers: it trains on, answers, and lets its clients in."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.codec.frames import HEARTBEAT_TOPIC
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.server.server import Server

from .harness import DAEMON, until
from .raw import ipc_path

FILE_LIMIT = 200


@pytest.fixture
def flooded() -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in its own process that may have few files."""
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON, "alpha"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILE_LIMIT, FILE_LIMIT)),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_local_connections_cannot_take_all_file_numbers(flooded: subprocess.Popen[bytes]) -> None:
    """libzmq aborts the process that cannot accept one on a Unix socket: they are refused before."""
    path = str(ipc_path(find_run("alpha").connection.endpoints["qry"]))  # type: ignore[union-attr]
    held = []

    def is_refused() -> bool:
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(1.0)
        held.append(one)
        try:
            one.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except (BlockingIOError, TimeoutError):  # it has not come to accept those before
            return False
        return False

    with connect("alpha") as local:
        before = local.status()["round"]
        until(is_refused)
        assert until(lambda: local.status()["round"] > before), "it trains on, and who is in stays in"
        for one in held:
            one.close()
        until(lambda: Path(path).exists())
    with connect("alpha") as newcomer:
        assert newcomer.status()["wire"]["failing"] == {}
    assert flooded.poll() is None


def test_messages_of_local_readers_are_no_cancellations(server: Server) -> None:
    endpoint = server.endpoints["ipc"]["ev"]  # type: ignore[index]
    with zmq.Context() as context, context.socket(zmq.XSUB) as reader:
        reader.connect(endpoint)
        for _ in range(20):
            reader.send(b"\2" + HEARTBEAT_TOPIC)
        reader.send(b"\1" + HEARTBEAT_TOPIC)
        until(lambda: server.subscribers == 1)
    until(lambda: server.subscribers == 0)
