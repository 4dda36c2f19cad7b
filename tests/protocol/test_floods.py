"""More connections than a daemon may have file numbers: it trains on, answers, and lets its clients in."""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.codec.frames import HEARTBEAT_TOPIC, VIEW_TOPIC
from esper_overwatch.protocol.codec.zmq_options import terminate_context
from esper_overwatch.protocol.errors import KeyRefused
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server import event_forwarder, tcp_connections
from esper_overwatch.protocol.server import server as server_module
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.server.subscription_rates import SubscriptionRates
from esper_overwatch.protocol.storage.keys import client_pair, make_client

from .harness import DAEMON, Reader, until
from .raw import ipc_path
from .sshd import free_ports

FILE_LIMIT = 200
LISTENING = DAEMON.replace(
    "RunFolder.claim(sys.argv[1]), hello={}", "RunFolder.claim(sys.argv[1]), hello={}, listen=sys.argv[2]"
)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    make_client("laptop", server=None, role="viewer")
    make_client("other", server=None, role="viewer")
    return f"tcp://127.0.0.1:{free_ports(3)}"


@pytest.fixture
def flooded(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in its own process that may have few files."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, "alpha", address],
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


def strangers(address: str, count: int) -> list[socket.socket]:
    """Connections that say nothing, on all three ports in turn."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return [socket.create_connection((host, int(port) + n % 3)) for n in range(count)]


def test_strangers_take_no_file_numbers(flooded: subprocess.Popen[bytes], address: str) -> None:
    """Three times as many connections as the process may have files, while a client watches over TCP."""
    with connect("alpha") as local, connect(address, key="laptop") as remote:
        before = local.status()["round"]
        open_ones = strangers(address, 3 * FILE_LIMIT)
        listen: dict[str, Any] = until(
            lambda: (found := local.status()["listen"])["closed"] >= FILE_LIMIT and found
        )
        assert listen["unproven"] <= listen["limits"]["unproven"] < FILE_LIMIT / 4
        assert until(lambda: local.status()["round"] > before), "it trains on"
        assert remote.status()["name"] == "alpha"
        with connect(address, key="other") as newcomer:
            assert newcomer.status()["name"] == "alpha"
        for one in open_ones:
            one.close()
        until(lambda: local.status()["wire"]["failing"] == {})
        assert local.status()["dropped"] == {"life": 0, "metric": 0, "trace": 0, "log": 0}
    assert flooded.poll() is None


def test_local_connections_cannot_take_all_file_numbers(
    flooded: subprocess.Popen[bytes], address: str
) -> None:
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


@pytest.fixture
def listening(address: str) -> Iterator[Server]:
    server = Server(RunFolder.claim("beta"), hello={}, listen=address)
    server.start()
    yield server
    server.close()
    server.run.release()


@contextmanager
def dealers(address: str, key: str, count: int) -> Iterator[None]:
    """Connections of a key, each with one request; libzmq may hold their context for a while."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    _, pair = client_pair(key)
    made = []
    for _ in range(count):
        dealer = context.socket(zmq.DEALER)
        dealer.set(zmq.CURVE_SERVERKEY, pair.server.encode())
        dealer.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
        dealer.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
        dealer.set(zmq.RECONNECT_IVL, -1)
        dealer.connect(address)
        dealer.send_multipart([b"", b'{"jsonrpc":"2.0","id":"0","method":"ping"}'])
        made.append(dealer)
    try:
        yield
    finally:
        for dealer in made:
            dealer.close(linger=0)
        terminate_context(context, patience_seconds=0.0)


def test_one_key_leaves_connections_to_others(
    listening: Server, address: str, reader: Callable[..., Reader]
) -> None:
    assert listening._listener is not None
    connections = listening._listener.connections
    connections.limit, connections.max_per_key, connections.max_unproven = 16, 8, 6
    with dealers(address, "laptop", 30):
        until(lambda: connections.cut + listening._listener.num_put_off >= 14)  # type: ignore[union-attr]
        assert len(connections) <= 16
        one = reader(with_key(address, "other"))
        one.read(lambda: one.subscriber.state == "live")
        with connect(address, key="other") as run:
            assert run.status()["name"] == "beta"
    until(lambda: len(connections) <= 8)


def test_key_with_all_its_connections_is_told_so(listening: Server, address: str) -> None:
    assert listening._listener is not None
    connections = listening._listener.connections
    connections.max_per_key = 2
    with dealers(address, "laptop", 2):
        until(lambda: connections.is_full_for(client_pair("laptop")[1].public))
        with pytest.raises(KeyRefused, match="laptop in for now: it has too many connections"):
            connect(address, key="laptop")
        with connect(address, key="other") as run:
            assert run.status()["listen"]["denied"] > 0


@contextmanager
def topics(address: str, key: str, connections: int = 4) -> Iterator[Callable[[], None]]:
    """Subscribers of a key over TCP; what it gives subscribes each to some more topics."""
    numbers = itertools.count()
    with subscribers(address, key, connections) as made:

        def subscribe() -> None:
            for subscriber in made:
                for _ in range(20):
                    with contextlib.suppress(zmq.Again):
                        subscriber.send(b"\1%d" % next(numbers) + bytes(400), zmq.NOBLOCK)

        yield subscribe


@contextmanager
def subscribers(address: str, key: str, count: int) -> Iterator[list[zmq.Socket[bytes]]]:
    """XSUBs of a key over TCP."""
    host, _, port = address.rpartition(":")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    _, pair = client_pair(key)
    made = []
    for _ in range(count):
        subscriber = context.socket(zmq.XSUB)
        subscriber.set(zmq.CURVE_SERVERKEY, pair.server.encode())
        subscriber.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
        subscriber.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
        subscriber.connect(f"{host}:{int(port) + 2}")
        made.append(subscriber)
    try:
        yield made
    finally:
        for subscriber in made:
            subscriber.close(linger=0)
        terminate_context(context, patience_seconds=0.0)


def test_subscriptions_of_a_connection_count_once(listening: Server, address: str) -> None:
    def counts() -> tuple[int, int]:
        return listening.subscribers, listening._count_subscribers(VIEW_TOPIC)

    with subscribers(address, "other", 1) as (viewer,):
        viewer.send(b"\1" + VIEW_TOPIC)
        viewer.send(b"\1" + HEARTBEAT_TOPIC)
        until(lambda: counts() == (1, 1))
        with subscribers(address, "laptop", 1) as (hostile,):
            for message in (b"\2" + VIEW_TOPIC, b"\2" + HEARTBEAT_TOPIC, b"\1" + VIEW_TOPIC):
                for _ in range(20):
                    hostile.send(message)
            hostile.send(b"\1" + HEARTBEAT_TOPIC)  # the last: what came before it has been seen with it
            until(lambda: listening.subscribers == 2)
            assert counts() == (2, 2)
        until(lambda: counts() == (1, 1))
    until(lambda: counts() == (0, 0))


def test_messages_of_local_readers_are_no_cancellations(listening: Server) -> None:
    endpoint = listening.endpoints["ipc"]["ev"]  # type: ignore[index]
    with zmq.Context() as context, context.socket(zmq.XSUB) as reader:
        reader.connect(endpoint)
        for _ in range(20):
            reader.send(b"\2" + HEARTBEAT_TOPIC)
        reader.send(b"\1" + HEARTBEAT_TOPIC)
        until(lambda: listening.subscribers == 1)
    until(lambda: listening.subscribers == 0)


def test_flood_is_cut_while_the_events_are_held(
    listening: Server, address: str, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libzmq holds it: no subscription is seen, and a subscriber that joined before stays."""
    assert listening._listener is not None
    connections = listening._listener.connections
    one = reader(with_key(address, "other"))
    one.read(lambda: one.subscriber.state == "live")
    monkeypatch.setattr(listening._listener._events, "_note_subscriptions", lambda: None)
    with topics(address, "laptop") as subscribe:
        until(lambda: subscribe() or connections.cut >= 4)  # type: ignore[func-returns-value]
    newest = one.last("life")
    listening.set_state("TRAINING", "on")
    one.read(lambda: one.last("life") > newest)
    assert one.resets == one.resets[:1], "it was not cut"


def test_subscriptions_that_hold_the_publisher_hold_nothing_else(
    listening: Server, address: str, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libzmq holds the thread that owns it, for seconds, where many connections subscribe and leave."""
    assert listening._listener is not None
    is_held, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(server_module, "TICK_SECONDS", 0.002)
    monkeypatch.setattr(
        listening._listener.connections, "note_subscription", lambda _frame: is_held.set() or goes_on.wait()
    )
    one = reader("beta")
    one.read(lambda: one.subscriber.state == "live")
    with topics(address, "laptop", connections=1) as subscribe:
        until(lambda: subscribe() or is_held.is_set())  # type: ignore[func-returns-value]
        with connect("beta") as local, connect(address, key="other") as remote:
            for _ in range(80):  # more events than its queue holds
                listening.set_state("TRAINING", "on")
                newest = one.last("life")
                one.read(lambda newest=newest: one.last("life") > newest)  # type: ignore[misc]
                assert local.ping() > 0
                assert remote.ping() > 0
        goes_on.set()
        late = reader(with_key(address, "other"))
        late.read(lambda: late.subscriber.state == "live" and late.last("life") >= newest)


def test_server_closes_while_its_publisher_is_held(
    listening: Server, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert listening._listener is not None
    is_held, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(event_forwarder, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(
        listening._listener.connections, "note_subscription", lambda _frame: is_held.set() or goes_on.wait()
    )
    with topics(address, "laptop", connections=1) as subscribe:
        until(lambda: subscribe() or is_held.is_set())  # type: ignore[func-returns-value]
        listening.close()
        goes_on.set()
    assert "is held by subscriptions" in caplog.text
    until(lambda: not any(thread.name == "esper-events" for thread in threading.enumerate()))
    assert not listening.faults.counts


def test_key_that_floods_is_turned_away_others_are_not(
    listening: Server, address: str, reader: Callable[..., Reader]
) -> None:
    assert listening._listener is not None
    with topics(address, "laptop") as subscribe:
        until(lambda: subscribe() or listening._listener.num_put_off)  # type: ignore[union-attr, func-returns-value]
        with connect(address, key="other") as newcomer:
            assert newcomer.status()["listen"]["denied"] > 0
        with pytest.raises(KeyRefused, match="key laptop in for now: it has too many"):
            connect(address, key="laptop")
        one = reader(with_key(address, "other"))
        one.read(lambda: one.subscriber.state == "live")
    listening._listener._rates = SubscriptionRates()  # as a minute later
    with connect(address, key="laptop") as again:
        assert again.status()["name"] == "beta"


def test_limits_follow_the_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for files in (200, 1024, 65_536):
        monkeypatch.setattr(tcp_connections.resource, "getrlimit", lambda _, files=files: (files, files))
        one = tcp_connections.TcpConnections(set(), lambda _why: None)
        found.append((one.limit, one.max_unproven, one.max_per_key))
    assert found == [(50, 25, 25), (256, 64, 128), (256, 64, 128)]
    assert found[-1][0] == tcp_connections.MAX_CONNECTIONS
