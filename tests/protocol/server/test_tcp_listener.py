"""A daemon on TCP: keys, roles, refusals; every connection over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket as plain
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from click.testing import CliRunner

from esper_overwatch import Subscriber, connect
from esper_overwatch.overwatch_tui.cli import main as terminal
from esper_overwatch.protocol.client.endpoint import MAX_BROKEN_OFF, HandshakeMonitor
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.errors import KeyRefused, KeysUnusable, NoReply, RequestError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.keys import (
    AllowList,
    KeyPair,
    client_pair,
    make_client,
    new_pair,
    write_secret,
)
from esper_overwatch.trainer.cli.main import main
from tests.protocol.harness import Reader, until
from tests.protocol.sshd import free_ports


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "esper"


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_ports(3)}"


@pytest.fixture
def listening(address: str) -> Iterator[Server]:
    """A run that listens, with the keys viewer, operator and admin."""
    for role in ("viewer", "operator", "admin"):
        make_client(role, server=None, role=role)  # type: ignore[arg-type]
    server = Server(RunFolder.claim("alpha"), hello={}, listen=address)
    server.start()
    server.set_state("TRAINING")
    yield server
    server.close()
    server.run.release()


def refused(server: Server) -> list[dict[str, object]]:
    return events_of(server, "command.refused")


def events_of(server: Server, type_: str) -> list[dict[str, object]]:
    """The data of the journal's events of a type."""
    return [vars(e.data) for e in read(server.run.events) if e.type == type_]


def test_a_viewer_watches_and_may_not_stop(listening: Server, address: str) -> None:
    with connect(address, key="viewer", client="me") as run:
        assert run.run.name == "alpha"
        listen = run.status()["listen"]
        assert (listen["address"], listen["authorized"], listen["denied"]) == (address, 3, 0)
        assert until(run.snapshot)
        for method in (m for m in METHODS.values() if m.socket == "ctl"):
            with pytest.raises(RequestError) as caught:
                run.call(method.name, {"tag": "x"} if method.name == "checkpoint" else {})
            assert (caught.value.kind, caught.value.code, caught.value.exit_code) == ("forbidden", -32002, 4)
            assert (caught.value.data["role"], caught.value.data["need"]) == ("viewer", method.need)
    assert listening.mailbox.poll() == []
    rows = until(lambda: [r for r in refused(listening) if r["method"] == "stop"])
    assert [(r["key"], r["code"], r["client"]) for r in rows] == [("viewer", -32002, "me")]


def test_an_operator_steers_and_the_audit_names_the_key(listening: Server, address: str) -> None:
    with connect(address, key="operator") as run:
        assert run.pause()["state"] == "accepted"
    (command,) = until(listening.mailbox.poll)
    assert command.method == "pause"
    accepted = until(lambda: [e.data for e in read(listening.run.events) if e.type == "command.accepted"])
    assert [(a.key, a.uid, a.pid) for a in accepted] == [("operator", None, None)]


def test_who_is_on_this_machine_needs_no_key(listening: Server) -> None:
    with connect("alpha") as run:
        assert run.pause()["state"] == "accepted"


def test_events_come_and_are_repaired(listening: Server, address: str, reader: Callable[..., Reader]) -> None:
    one = reader(with_key(address, "viewer"))
    one.read(lambda: one.subscriber.state == "live")
    assert one.subscriber.run is not None
    assert (one.subscriber.run.name, one.subscriber.run.id) == ("alpha", listening.run.id)
    assert listening.subscribers == 1
    for n in range(200):
        listening.set_state("TRAINING", str(n))
    one.read(lambda: one.last("life") >= 200)


def test_a_revoked_key_counts_for_nothing_on_live_connections(
    listening: Server, address: str, reader: Callable[..., Reader]
) -> None:
    cut, kept = reader(with_key(address, "viewer")), reader(with_key(address, "admin"))
    for one in (cut, kept):
        one.read(lambda one=one: one.subscriber.state == "live")  # type: ignore[misc]
    with connect(address, key="operator") as run:
        AllowList().revoke("operator")
        until(lambda: listening.listening["authorized"] == 2)  # type: ignore[index]
        with pytest.raises(RequestError) as caught:
            run.pause()
        assert (caught.value.kind, caught.value.data["role"]) == ("forbidden", None)
        with pytest.raises(RequestError, match="key operator is nobody here"):
            run.status()
        rows = until(lambda: [r for r in refused(listening) if r["method"] == "pause"])
        assert rows[-1]["key"] == "operator"
    AllowList().revoke("viewer")
    until(lambda: listening.listening["authorized"] == 1)  # type: ignore[index]
    cut.read(lambda: cut.subscriber.problem)
    assert "does not let key viewer in" in (cut.subscriber.problem or "")
    seen = cut.last("life")
    for n in range(50):
        listening.set_state("TRAINING", f"secret {n}")
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


def test_a_role_changes_at_once(listening: Server, address: str) -> None:
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


def test_reload_reads_the_list_at_once(listening: Server, address: str) -> None:
    AllowList().revoke("viewer")
    listening.reload()
    until(lambda: listening.listening["authorized"] == 2)  # type: ignore[index]


def test_unknown_keys_and_wrong_servers_are_told(listening: Server, address: str, config: Path) -> None:
    make_client("stranger", server=client_pair("viewer")[1].server, role=None)
    make_client("astray", server=new_pair().public, role=None)
    with pytest.raises(KeyRefused, match="does not let key stranger in: it is not authorized there"):
        connect(address, key="stranger")
    with pytest.raises(KeyRefused, match="and key astray do not understand each other"):
        connect(address, key="astray")
    assert listening.listening is not None
    assert listening.listening["denied"] != 0
    with Subscriber(with_key(address, "stranger")) as subscriber:
        until(lambda: subscriber.drain() is not None and subscriber.problem)
        assert subscriber.state in ("searching", "lost", "connecting")


def test_a_handshake_cut_twice_does_not_blame_the_key(
    listening: Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a flood of strangers cuts it: the oldest connections without a message are closed."""
    assert listening._listener is not None
    connections = listening._listener.connections
    allowed, connections.max_unproven = connections.max_unproven, 0
    close = connections._close

    def close_and_relent(fd: int, why: str) -> None:
        close(fd, why)
        if connections.cut == 2:
            connections.max_unproven = allowed

    monkeypatch.setattr(connections, "_close", close_and_relent)
    with connect(address, key="viewer") as run:
        assert run.status()["name"] == "alpha"
    assert connections.cut == 2


def test_cut_handshakes_do_not_blame_a_key_let_in_before(listening: Server, address: str) -> None:
    """As a flood of strangers cuts them again and again."""
    assert listening._listener is not None
    connections = listening._listener.connections
    with connect(address, key="operator") as run:
        assert run.pause()["state"] == "accepted"
        with connections._lock:
            connections.max_unproven = 0
            (ctl,) = (fd for fd, one in connections._open.items() if one.port == "ctl")
            connections._close(ctl, "as in a flood")
        until(lambda: run.status()["name"] == "alpha" and connections.cut > MAX_BROKEN_OFF + 2)


@pytest.mark.parametrize(("kind", "more"), [(zmq.DEALER, 0), (zmq.DEALER, 1), (zmq.SUB, 2)])
def test_without_encryption_nothing_is_answered(
    listening: Server, address: str, kind: int, more: int
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    handshakes = HandshakeMonitor(socket, "none", address)
    try:
        host, _, port = address.rpartition(":")
        socket.connect(f"{host}:{int(port) + more}")
        if kind == zmq.SUB:
            socket.subscribe(b"")
        else:
            hello = {"jsonrpc": "2.0", "id": "x", "method": "hello"}
            socket.send_multipart([b"", json.dumps(hello).encode()])
        assert "do not understand each other" in until(handshakes.problem)
        assert socket.poll(200) == 0
    finally:
        handshakes.close()
        context.destroy(linger=0)
    assert listening.counters["requests"] == 0
    until(lambda: listening.listening["denied"])  # type: ignore[index]


def test_captured_bytes_open_nothing(listening: Server, address: str) -> None:
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
        body = {"jsonrpc": "2.0", "id": "once", "method": "pause"}
        dealer.send_multipart([b"", json.dumps(body).encode()])
        assert dealer.poll(300_000)
        context.destroy(linger=0)
        thread.join(5)
    assert [c.id for c in until(listening.mailbox.poll)] == ["once"]
    before = listening.counters["requests"]
    with plain.create_connection((host, port)) as again:
        again.settimeout(1.0)
        again.sendall(bytes(sent))
        try:
            while again.recv(65536):
                pass
        except OSError:
            pass
    assert listening.counters["requests"] == before
    assert listening.mailbox.poll() == []


def test_listener_needs_a_key_and_an_authorized_client(address: str, config: Path) -> None:
    run = RunFolder.claim("alpha")
    with pytest.raises(KeysUnusable, match=r"server\.key; make it .*: esper-daemon keys new"):
        Server(run, hello={}, listen=address)
    make_client("laptop", server=None, role="viewer")
    AllowList().revoke("laptop")
    with pytest.raises(KeysUnusable, match=r"nobody is authorized .* esper-daemon keys new"):
        Server(run, hello={}, listen=address)
    for wrong in ("tcp://x", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65535", "ipc:///tmp/x", "tcp://a b:5555"):
        with pytest.raises(KeysUnusable, match="is not an address"):
            Server(run, hello={}, listen=wrong)
    run.release()


def test_taken_port_is_an_error_and_leaves_nothing(address: str) -> None:
    make_client("laptop", server=None, role="viewer")
    port = int(address.rpartition(":")[2])
    run = RunFolder.claim("alpha")
    with plain.create_server(("127.0.0.1", port + 2)):
        server = Server(run, hello={}, listen=address)
        with pytest.raises(KeysUnusable, match=f"cannot listen on {address} and the next two ports"):
            server.start()
        server.close()
        assert not run.connection.exists()
    run.release()


def test_a_dead_handler_lets_nobody_in(
    listening: Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listening._listener is not None
    listening._listener.authenticate = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr("esper_overwatch.protocol.client.client.STARTING_SECONDS", 1.0)
    with pytest.raises((NoReply, KeyRefused)):
        connect(address, key="admin")


def test_the_command_line_over_tcp(listening: Server, address: str) -> None:
    runner = CliRunner()
    status = runner.invoke(main, ["status", address, "--key", "viewer", "--json"])
    assert json.loads(status.output)["name"] == "alpha"
    stop = runner.invoke(main, ["stop", address, "--key", "viewer"])
    assert (stop.exit_code, stop.output) == (
        4,
        "esper-daemon: stop refused: key viewer is viewer here; it takes operator\n",
    )
    mark = runner.invoke(main, ["mark", address, "a note", "--key", "operator"])
    assert (mark.exit_code, until(lambda: events_of(listening, "mark"))[0]["text"]) == (0, "a note")
    ping = runner.invoke(main, ["call", "--key", "viewer", address, "ping"])
    assert ping.exit_code == 0, ping.output
    params = runner.invoke(main, ["param", address, "--key", "viewer", "--json"])
    assert (params.exit_code, json.loads(params.output)) == (0, [])
    for words in (["query", address, "SELECT 1"], ["doctor", address]):
        refused = runner.invoke(main, [*words, "--key", "viewer"])
        assert (refused.exit_code, "use --ssh" in refused.output) == (3, True)
    picture = runner.invoke(terminal, [address, "--once"])
    assert (picture.exit_code, "give --key NAME" in picture.output) == (10, True)


def test_the_key_to_use_is_found_or_asked_for(listening: Server, address: str) -> None:
    with pytest.raises(KeysUnusable, match="admin, operator, viewer; give --key NAME"):
        connect(address)
    with pytest.raises(KeysUnusable, match="no key other"):
        connect(address, key="other")
    with pytest.raises(Exception, match="two keys are named"):
        with_key("tcp://a@h:1", "b")


def test_a_key_is_not_shown() -> None:
    pair = new_pair()
    assert pair.secret not in repr(pair) + str(pair)
    from esper_overwatch.protocol.client.endpoint import CurveKeys

    assert "hidden" not in repr(CurveKeys("n", "s", "p", "hidden"))


def test_secrets_are_never_written_over(tmp_path: Path) -> None:
    write_secret(tmp_path / "k", new_pair())
    with pytest.raises(KeysUnusable, match="is there already"):
        write_secret(tmp_path / "k", KeyPair("a", "b"))


ORPHANED = """
import os, sys, time
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
server = Server(RunFolder.claim("alpha"), hello={}, listen=sys.argv[1])
server.start()
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


def test_port_held_by_orphan_is_named_and_freed_with_it(address: str) -> None:
    make_client("laptop", server=None, role="viewer")
    daemon = subprocess.Popen([sys.executable, "-c", ORPHANED, address], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == b"ready\n"
    (orphan,) = psutil.Process(daemon.pid).children()
    daemon.kill()
    daemon.wait()
    run = RunFolder.claim("alpha")
    try:
        refused = Server(run, hello={}, listen=address)
        with pytest.raises(KeysUnusable, match=f"cannot listen on .* held by process {orphan.pid}$"):
            refused.start()
        refused.close()
    finally:
        orphan.kill()
        daemon.stdout.close()
    until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)
    again = Server(run, hello={}, listen=address)
    again.start()
    with connect(address, key="laptop") as client:
        assert client.ping() > 0
    again.close()
    run.release()
