"""A gateway: keys, roles, refusals, ends; every connection over real sockets."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket as plain
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import zmq
from click.testing import CliRunner

from esper_overwatch import Subscriber, connect
from esper_overwatch.overwatch_tui.cli import main as terminal
from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.endpoint import ConnectedSocket, Target
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.codec.frames import VIEW_TOPIC
from esper_overwatch.protocol.codec.zmq_options import terminate_context
from esper_overwatch.protocol.errors import BadName, KeyRefused, KeysUnusable, NoReply, RequestError
from esper_overwatch.protocol.gateway import Gateway
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.messages.roles import Claim
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.keys import (
    AllowList,
    KeyPair,
    client_pair,
    make_client,
    new_pair,
    write_secret,
)
from tests.protocol.harness import Reader, Start, gateway_process, serving, until
from tests.protocol.raw import Raw
from tests.protocol.sshd import free_ports
from tests.trainer.command import esper


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_ports(3)}"


@pytest.fixture
def server(start: Start) -> Server:
    """A run, and the keys viewer, operator and admin."""
    for role in ("viewer", "operator", "admin"):
        make_client(role, server=None, role=role)  # type: ignore[arg-type]
    one = start()
    one.set_state("TRAINING")
    return one


@pytest.fixture
def gateway(server: Server, address: str) -> Iterator[Gateway]:
    with serving(address) as one:
        yield one


@contextlib.contextmanager
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


def refused(server: Server) -> list[dict[str, object]]:
    return events_of(server, "command.refused")


def events_of(server: Server, type_: str) -> list[dict[str, object]]:
    """The data of the journal's events of a type."""
    return [vars(e.data) for e in read(server.run.events) if e.type == type_]


def test_a_viewer_watches_and_may_not_stop(gateway: Gateway, server: Server, address: str) -> None:
    with connect(address, key="viewer", client="me") as run:
        assert run.run.name == "alpha"
        assert until(run.snapshot)
        for method in (m for m in METHODS.values() if m.socket == "ctl"):
            with pytest.raises(RequestError) as caught:
                run.call(method.name, {"tag": "x"} if method.name == "checkpoint" else {})
            assert (caught.value.kind, caught.value.code, caught.value.exit_code) == ("forbidden", -32002, 4)
            assert (caught.value.data["role"], caught.value.data["need"]) == ("viewer", method.need)
    assert server.mailbox.poll() == []
    rows = until(lambda: [r for r in refused(server) if r["method"] == "stop"])
    assert [(r["key"], r["code"], r["client"]) for r in rows] == [("viewer", -32002, "me")]


def test_an_operator_steers_and_the_audit_names_the_key(
    gateway: Gateway, server: Server, address: str
) -> None:
    with connect(address, key="operator") as run:
        assert run.pause()["state"] == "accepted"
        assert [(op["key"], op["uid"]) for op in run.ops()] == [("operator", None)]
    (command,) = until(server.mailbox.poll)
    assert command.method == "pause"
    accepted = until(lambda: [e.data for e in read(server.run.events) if e.type == "command.accepted"])
    assert [(a.key, a.uid, a.pid) for a in accepted] == [("operator", None, None)]


def test_who_is_on_this_machine_needs_no_key(gateway: Gateway, server: Server) -> None:
    with connect("alpha") as run:
        assert run.pause()["state"] == "accepted"


def test_events_come_and_are_repaired(
    gateway: Gateway, server: Server, address: str, reader: Callable[..., Reader]
) -> None:
    one = reader(with_key(address, "viewer"))
    one.read(lambda: one.subscriber.state == "live")
    assert one.subscriber.run is not None
    assert (one.subscriber.run.name, one.subscriber.run.id) == ("alpha", server.run.id)
    assert server.subscribers == 1
    for n in range(200):
        server.set_state("TRAINING", str(n))
    one.read(lambda: one.last("life") >= 200)


def test_a_revoked_key_counts_for_nothing_on_live_connections(
    gateway: Gateway, server: Server, address: str, reader: Callable[..., Reader]
) -> None:
    cut, kept = reader(with_key(address, "viewer")), reader(with_key(address, "admin"))
    for one in (cut, kept):
        one.read(lambda one=one: one.subscriber.state == "live")  # type: ignore[misc]
    with connect(address, key="operator") as run:
        AllowList().revoke("operator")
        with pytest.raises((KeyRefused, NoReply)):
            until(lambda: run.pause() and server.mailbox.poll() and False)
        with pytest.raises(KeyRefused, match="does not let key operator in"):
            connect(address, key="operator")
    AllowList().revoke("viewer")
    cut.read(lambda: cut.subscriber.problem)
    assert "does not let key viewer in" in (cut.subscriber.problem or "")
    seen = cut.last("life")
    for n in range(50):
        server.set_state("TRAINING", f"secret {n}")
    newest = 50 + seen
    kept.read(lambda: kept.last("life") >= newest)
    numbers = [e.seq for e in kept.events if e.stream == "life"]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "whoever stays has missed nothing"
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        cut.items += cut.subscriber.drain()
        time.sleep(0.02)
    assert cut.last("life") == seen
    assert cut.subscriber.state == "lost"


def test_a_role_changes_at_once(gateway: Gateway, server: Server, address: str) -> None:
    with connect(address, key="operator") as run:
        public = client_pair("operator")[1].public
        AllowList().authorize("operator", public, "viewer")

        def refused() -> bool:
            try:
                run.checkpoint()
            except RequestError as error:
                return error.kind == "forbidden"
            return False

        until(refused)
        AllowList().authorize("operator", public, "admin")
        until(lambda: not refused())


def test_unknown_keys_and_wrong_servers_are_told(gateway: Gateway, server: Server, address: str) -> None:
    make_client("stranger", server=client_pair("viewer")[1].server, role=None)
    make_client("astray", server=new_pair().public, role=None)
    with pytest.raises(KeyRefused, match="does not let key stranger in: it is not authorized there"):
        connect(address, key="stranger")
    with pytest.raises(KeyRefused, match="and key astray do not understand each other"):
        connect(address, key="astray")
    with Subscriber(with_key(address, "stranger")) as subscriber:
        until(lambda: subscriber.drain() is not None and subscriber.problem)
        assert subscriber.state in ("searching", "lost", "connecting")


@pytest.mark.parametrize(("kind", "more"), [(zmq.DEALER, 0), (zmq.DEALER, 1), (zmq.SUB, 2)])
def test_without_encryption_nothing_is_answered(
    gateway: Gateway, server: Server, address: str, kind: int, more: int
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    connected = ConnectedSocket(socket, "none", address)
    try:
        host, _, port = address.rpartition(":")
        socket.connect(f"{host}:{int(port) + more}")
        if kind == zmq.SUB:
            socket.subscribe(b"")
        else:
            hello = {"jsonrpc": "2.0", "id": "x", "method": "hello"}
            with contextlib.suppress(zmq.Again):  # where it has been turned away already
                socket.send_multipart([b"", json.dumps(hello).encode()], zmq.NOBLOCK)
        assert "do not understand each other" in until(connected.problem)
        assert socket.poll(200) == 0
    finally:
        connected.close()
        context.destroy(linger=0)
    assert server.counters["requests"] == 0


def test_captured_bytes_open_nothing(gateway: Gateway, server: Server, address: str) -> None:
    """A recording of a whole connection, played to the daemon again."""
    host, port = "127.0.0.1", int(address.rpartition(":")[2]) + 1
    with plain.create_server((host, 0)) as middle:
        sent = bytearray()

        def carry() -> None:
            inner, _ = middle.accept()
            outer = plain.create_connection((host, port))

            def back() -> None:
                with contextlib.suppress(OSError):
                    while data := outer.recv(65536):
                        inner.sendall(data)

            threading.Thread(target=back, daemon=True).start()
            with contextlib.suppress(OSError):
                while data := inner.recv(65536):
                    sent.extend(data)
                    outer.sendall(data)
            outer.close()

        thread = threading.Thread(target=carry, daemon=True)
        thread.start()
        _, pair = client_pair("operator")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.set(zmq.CURVE_SERVERKEY, pair.server.encode())
        dealer.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
        dealer.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
        dealer.connect(f"tcp://{host}:{middle.getsockname()[1]}")
        body = json.dumps({"jsonrpc": "2.0", "id": "once", "method": "pause"}).encode()

        def is_taken() -> bool:
            """A gateway that is not connected yet answers `overloaded`; the same bytes may succeed then."""
            dealer.send_multipart([b"", body])
            assert dealer.poll(300_000)
            answer: dict[str, object] = json.loads(dealer.recv_multipart()[-1])
            return "result" in answer

        until(is_taken)
        context.destroy(linger=0)
        thread.join(5)
    assert [c.id for c in until(server.mailbox.poll)] == ["once"]
    before = server.counters["requests"]
    with plain.create_connection((host, port)) as again:
        again.settimeout(1.0)
        again.sendall(bytes(sent))
        try:
            while again.recv(65536):
                pass
        except OSError:
            pass
    assert server.counters["requests"] == before
    assert server.mailbox.poll() == []


def test_gateway_needs_a_key_and_an_authorized_client(address: str) -> None:
    with pytest.raises(KeysUnusable, match=r"server\.key; make it .*: esper-daemon keys new"):
        Gateway("alpha", address)
    make_client("laptop", server=None, role="viewer")
    AllowList().revoke("laptop")
    with pytest.raises(KeysUnusable, match=r"nobody is authorized .* esper-daemon keys new"):
        Gateway("alpha", address)
    for wrong in ("tcp://x", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65535", "ipc:///tmp/x", "tcp://a b:5555"):
        with pytest.raises(BadName, match="is not an address"):
            Gateway("alpha", wrong)


def test_taken_port_is_named_with_its_holder(address: str) -> None:
    make_client("laptop", server=None, role="viewer")
    port = int(address.rpartition(":")[2])
    held = f"cannot listen on {address} and the next two ports: .*; held by process {os.getpid()}$"
    with plain.create_server(("127.0.0.1", port + 2)), pytest.raises(KeysUnusable, match=held):
        Gateway("alpha", address)
    Gateway("alpha", address).close()


def test_a_dead_handler_lets_nobody_in(
    gateway: Gateway, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway._authenticator.stop()
    monkeypatch.setattr("esper_overwatch.protocol.client.client.STARTING_SECONDS", 1.0)
    with pytest.raises((NoReply, KeyRefused)):
        connect(address, key="admin")


def test_keys_stay_valid_while_they_cannot_be_read(
    gateway: Gateway, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of file numbers nobody is revoked: the list that was read last counts."""

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(AllowList, "changed", property(full))
        until(lambda: "cannot be read now: Too many open files" in caplog.text)
        with connect(address, key="viewer") as run:
            assert run.ping() > 0


def _is_refused(run: Client) -> bool:
    with contextlib.suppress(RequestError):
        return not run.status()
    return True


def test_next_boot_of_the_run_is_served(
    gateway: Gateway, server: Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(address, key="viewer") as run:
        assert run.status()["boot"] == server.boot
        server.close()
        with pytest.raises(RequestError, match="alpha is not live there; the gateway waits for it"):
            until(lambda: run.status() and False)
        looks: list[float] = []
        find = gateway._source.find
        monkeypatch.setattr(gateway._source, "find", lambda: looks.append(time.monotonic()) or find())  # type: ignore[func-returns-value]
        until(lambda: _is_refused(run) and len(looks) > 2)
        assert all(later - one > 0.4 for one, later in pairwise(looks)), "requests make it look no oftener"
    again = Server(server.run, hello={})
    again.start()
    until(lambda: gateway._target is not None)
    with connect(address, key="viewer") as run:
        assert run.status()["boot"] == again.boot
    again.close()


def test_views_are_made_while_somebody_looks(gateway: Gateway, server: Server, address: str) -> None:
    def counts() -> tuple[int, int]:
        return server.subscribers, server._subscriber_counts[VIEW_TOPIC]

    until(lambda: counts() == (1, 0))
    with subscribers(address, "viewer", 2) as (one, hostile):
        one.send(b"\1" + VIEW_TOPIC)
        until(lambda: counts() == (1, 1))
        for message in (b"\2" + VIEW_TOPIC, b"\0" + VIEW_TOPIC, b"\1" + VIEW_TOPIC, b"\0" + VIEW_TOPIC):
            hostile.send(message)
        hostile.send(b"\1marker")
        until(lambda: gateway._counts[b"marker"] == 0 and counts() == (1, 1))
    until(lambda: counts() == (1, 0))


def test_flood_of_topics_never_reaches_the_run(gateway: Gateway, server: Server, address: str) -> None:
    with subscribers(address, "viewer", 4) as made:
        for number in range(2_000):
            with contextlib.suppress(zmq.Again):
                made[number % 4].send(b"\1%d" % number + bytes(400), zmq.NOBLOCK)
        with connect("alpha") as run:
            assert run.status()["clients"] == 1
        with connect(address, key="admin") as other:
            assert other.ping() > 0
    assert server.subscribers == 1


def test_claim_takes_rights_and_gives_none(server: Server) -> None:
    body = b'{"jsonrpc":"2.0","id":"%s","method":"pause"}'
    with Raw("alpha") as raw:
        dealer = raw.open(zmq.DEALER, "ctl")
        for number, claim, error in (
            (b"1", Claim("laptop", "viewer").encode(), "key laptop is viewer here"),
            (b"2", b'gateway {"key":"laptop"}', "this connection is nobody here"),
            (b"3", b"gateway \xff", "this connection is nobody here"),
            (b"4", Claim("laptop", "operator").encode(), ""),
        ):
            dealer.send_multipart([claim, b"route", b"", body % number])
            *envelope, reply = dealer.recv_multipart()
            assert envelope == [claim, b"route", b""]
            assert error in json.loads(reply).get("error", {}).get("message", "")
    assert [command.id for command in until(server.mailbox.poll)] == ["4"]


def test_the_command_line_over_tcp(gateway: Gateway, server: Server, address: str) -> None:
    status = esper("status", address, "--key", "viewer", "--json")
    assert json.loads(status.output)["name"] == "alpha"
    stop = esper("stop", address, "--key", "viewer")
    assert (stop.exit_code, stop.output) == (
        4,
        "esper-daemon: stop refused: key viewer is viewer here; it takes operator\n",
    )
    mark = esper("mark", address, "a note", "--key", "operator")
    assert (mark.exit_code, until(lambda: events_of(server, "mark"))[0]["text"]) == (0, "a note")
    ping = esper("call", "--key", "viewer", address, "ping")
    assert ping.exit_code == 0, ping.output
    params = esper("param", address, "--key", "viewer", "--json")
    assert (params.exit_code, json.loads(params.output)) == (0, [])
    for words in (["query", address, "SELECT 1"], ["doctor", address]):
        refused = esper(*words, "--key", "viewer")
        assert (refused.exit_code, "use --ssh" in refused.output) == (3, True)
    picture = CliRunner().invoke(terminal, [address, "--once"])
    assert (picture.exit_code, "give --key NAME" in picture.output) == (10, True)


def test_the_key_to_use_is_found_or_asked_for(gateway: Gateway, server: Server, address: str) -> None:
    with pytest.raises(KeysUnusable, match="admin, operator, viewer; give --key NAME"):
        connect(address)
    with pytest.raises(KeysUnusable, match="no key other"):
        connect(address, key="other")
    with pytest.raises(Exception, match="two keys are named"):
        with_key("tcp://a@h:1", "b")


def test_a_key_is_not_shown() -> None:
    pair = new_pair()
    assert pair.secret not in repr(pair) + str(pair)
    assert pair.secret not in repr(Target("n", {}, key=pair))


def test_secrets_are_never_written_over(tmp_path: Path) -> None:
    write_secret(tmp_path / "k", new_pair())
    with pytest.raises(KeysUnusable, match="is there already"):
        write_secret(tmp_path / "k", KeyPair("a", "b"))


def serves(address: str) -> bool:
    try:
        with connect(address, key="operator") as run:
            return run.ping() > 0
    except (NoReply, KeyRefused):
        return False


def child_of(process: psutil.Process) -> psutil.Process:
    (child,) = until(process.children)
    return child


def test_killed_gateway_starts_again_unnoticed(
    server: Server, address: str, reader: Callable[..., Reader]
) -> None:
    with gateway_process(address) as process:
        until(lambda: serves(address))
        one = reader(with_key(address, "viewer"))
        one.read(lambda: one.subscriber.state == "live")
        for n in range(50):
            server.set_state("TRAINING", str(n))
            if n == 10:
                child_of(process).kill()
        until(lambda: serves(address))
        one.read(lambda: one.last("life") >= 50)
        numbers = [e.seq for e in one.events if e.stream == "life"]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "its reader has missed nothing"
        assert server.error is None
        child = child_of(process)
        process.kill()
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_command_ends_by_signal_and_tells_errors(server: Server, address: str) -> None:
    with gateway_process(address) as process:
        until(lambda: serves(address))
        other = esper("gateway", "ssh://box/alpha", "--listen", address)
        assert (other.exit_code, "run it on that machine" in other.output) == (3, True)
        second = subprocess.run(
            [sys.executable, "-m", "esper_overwatch.trainer", "gateway", "--listen", address],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == KeysUnusable.exit_code
        assert second.stderr.startswith(f"esper-daemon: cannot listen on {address} and the next two ports")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
