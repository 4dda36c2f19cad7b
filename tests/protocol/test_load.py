"""Long lines and many clients."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.server.server import Server

from .harness import DAEMON, Reader, check_against_journal, load, until
from .thin import ThinLine

CLIENTS = 1000


@pytest.mark.slow
def test_80_ms_and_losses_on_the_way(server: Server, reader: Callable[..., Reader]) -> None:
    # The line is named in the connection file, which is written again with the state.
    until(lambda: (run := find_run("alpha")) is not None and run.connection.state == "TRAINING")
    with ThinLine("alpha", loss=0.05) as line:
        with load(server, 600):
            begin = time.monotonic()
            one = reader()
            one.read(lambda: one.subscriber.state == "live")
            print(f"joined after {time.monotonic() - begin:.2f} s")
            with connect("alpha") as run:
                assert run.ping() >= 0.08, "the line is as long as it is meant to be"
                assert run.pause()["state"] == "accepted"
            one.read(lambda: one.last("log") > 1500)
        newest = server._publisher.last
        one.read(lambda: one.last("log") >= newest["log"] and one.last("life") >= newest["life"])
        assert line.late > 0
        check_against_journal(server, one)
        assert one.subscriber.stats.skipped == 0
        assert one.resets == [f"run alpha, boot {server.boot}"], "never had to begin again"
    assert [command.method for command in server.mailbox.poll()] == ["pause"]


def more_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))


@pytest.mark.slow
def test_a_thousand_clients() -> None:
    more_files()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4 * CLIENTS:
        pytest.skip("this machine allows too few open files for a thousand clients")
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, "alpha"], stdout=subprocess.PIPE, preexec_fn=more_files
    )
    assert daemon.stdout is not None
    assert daemon.stdout.readline()
    endpoints = find_run().connection.endpoints  # type: ignore[union-attr]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=2)
    context.set(zmq.MAX_SOCKETS, 4 * CLIENTS)
    process = psutil.Process(daemon.pid)
    files = process.num_fds()
    try:
        readers, askers = [], []
        for n in range(CLIENTS):
            reader, asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
            reader.subscribe(b"1/hb")
            reader.connect(endpoints["ev"])
            asker.connect(endpoints["qry"])
            body = {"jsonrpc": "2.0", "id": str(n), "method": "ping"}
            asker.send_multipart([b"", json.dumps(body).encode()])
            readers.append(reader)
            askers.append(asker)
        for n, asker in enumerate(askers):
            assert asker.poll(300_000)
            assert json.loads(asker.recv_multipart()[1])["id"] == str(n)
        for reader in readers:
            assert reader.poll(300_000), "each is welcomed"
        with connect("alpha") as run:
            until(lambda: run.status()["clients"] == CLIENTS)
            assert run.checkpoint(wait=True)["n"] > 0, "whoever commands is heard among them"
        context.destroy(linger=0)
        with connect("alpha") as run:
            until(lambda: run.status()["clients"] == 0)
        until(lambda: process.num_fds() <= files + 8)
    finally:
        context.destroy(linger=0)
        daemon.kill()
        daemon.communicate()
