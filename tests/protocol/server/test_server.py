"""A whole server over real sockets, driven from outside."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server.request_handler import MAX_REQUEST_BYTES
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.server.sockets import MAX_INBOUND_BYTES
from tests.protocol.harness import Start, until
from tests.protocol.raw import Raw, ipc_path


def system(n: int) -> ev.SystemSample:
    return ev.SystemSample(
        cpu_percent=float("nan"), rss=n, memory_total=1, memory_used=1, load1=0.5, cores=2, disk_free=1
    )


def test_a_run_is_steered_with_req_and_json_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with Raw() as raw:
        hello, _ = raw.ask("qry", "hello")
        assert hello["jsonrpc"] == "2.0"
        boot = hello["result"]["boot"]
        accepted, _ = raw.ask("ctl", "pause", meta={"expect": {"boot": boot}, "client": "raw"})
        assert accepted["result"] == {"state": "accepted"}
        (command,) = until(server.mailbox.poll)
        assert (command.method, command.client, command.pid) == ("pause", "raw", os.getpid())
        server.set_state("PAUSED", "by raw")
        tomorrow = time.time_ns() + 86_400 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: tomorrow)  # the clock is set meanwhile
        server.done(command, {"epoch": 3})
        assert raw.ask("qry", "status")[0]["result"]["state"] == "PAUSED"
        until(lambda: raw.ask("qry", "status")[0]["result"]["seq"]["life"] >= 4)
        _, (body,) = raw.ask("qry", "snapshot", params={"streams": ["life"]})
        events = [json.loads(line) for line in body.splitlines()]
    done = [e for e in events if e["type"] == "command.done"]
    assert done[0]["data"]["id"] == command.id
    assert done[0]["data"]["result"] == {"epoch": 3}
    assert 0 <= done[0]["data"]["seconds"] < 60
    audit = next(e["data"] for e in events if e["type"] == "command.accepted")
    assert (audit["uid"], audit["pid"]) == (os.getuid(), os.getpid())


def test_hello_says_who_what_and_within_which_limits(server: Server) -> None:
    with Raw() as raw:
        hello = raw.ask("qry", "hello")[0]["result"]
    assert hello["note"] == "of the trainer"
    assert (hello["run"], hello["name"], hello["pid"]) == (server.run.id, "alpha", os.getpid())
    assert set(hello["thresholds"]) == set(THRESHOLDS)
    assert hello["thresholds"]["kl"]["critical"] == THRESHOLDS["kl"].critical
    assert set(hello["methods"]) == set(METHODS)
    assert set(hello["events"]) == set(ev.EVENTS)
    assert hello["limits"]["request_bytes"] == MAX_REQUEST_BYTES


def test_status_tells_what_the_run_is_about(server: Server) -> None:
    server.emitter.set_clock(round=2, epoch=5, level="DEBUG")
    server.emitter.emit(
        ev.RunStarted(
            run="r",
            name="alpha",
            boot="b",
            pid=1,
            host="h",
            version="0",
            torch="2",
            device="cpu",
            task="digits",
            policy="ppo",
            envs=8,
            slots=[],
            blueprints=[],
            stages=[],
            ops=[],
            heads=[],
            episode_epochs=4,
            rounds=9,
            host_parameters=1,
            seed=0,
            config={},
        )
    )
    server.beat(2, 5)
    with Raw() as raw:
        status = until(lambda: (s := raw.ask("qry", "status")[0]["result"])["task"] and s)
    assert (status["task"], status["envs"], status["rounds"]) == ("digits", 8, 9)
    assert (status["round"], status["epoch"], status["level"]) == (2, 5, "DEBUG")
    assert status["beat_age_ms"] < 5000
    assert status["journal"]["bytes"] == server.run.events.stat().st_size
    assert status["journal"]["error"] is None


def test_the_journal_holds_what_was_published(server: Server) -> None:
    with Raw() as raw:
        sub = raw.subscribe(b"1/metric", b"1/hb")
        assert sub.recv_multipart() == [b"1/hb"], "the welcome"
        for i in range(300):
            server.emitter.emit(system(i))
        lines: list[bytes] = []
        numbers: list[int] = []
        while len(lines) < 300:
            topic, *frames = sub.recv_multipart()
            if topic == b"1/metric":
                header = json.loads(frames[0])
                lines += frames[1].split(b"\n")
                numbers += range(header["first"], header["last"] + 1)
                assert header["boot"] == server.boot
                assert header["run"] == server.run.id
    assert numbers == list(range(1, 301))
    assert [e.line for e in read(server.run.events) if e.stream == "metric"] == lines


def test_heartbeats_carry_the_numbers_and_the_trainers_beat(server: Server) -> None:
    server.emitter.emit(ev.RoundStarted(rounds=1))
    server.beat(4, 9)
    with Raw() as raw:
        sub = raw.subscribe(b"1/hb")
        assert sub.recv_multipart() == [b"1/hb"]
        first, _, second = (json.loads(sub.recv_multipart()[1]) for _ in range(3))
        assert first["trainer"]["state"] == "TRAINING"
        assert (first["trainer"]["round"], first["trainer"]["epoch"]) == (4, 9)
        assert second["last"]["life"] == 2
        assert second["clients"] == 1
        assert second["bye"] is None
        assert second["trainer"]["beat_age_ms"] > first["trainer"]["beat_age_ms"], "the trainer is silent"
        server.close("enough")
        while (last := json.loads(sub.recv_multipart()[1]))["bye"] is None:
            pass
        assert last["bye"] == "enough"


def test_numbers_go_on_over_boots_and_replay_reaches_back(start: Start) -> None:
    first = start()
    for i in range(5):
        first.emitter.emit(ev.RoundStarted(rounds=i))
    first.close()
    first.run.release()
    second = start()
    second.emitter.emit(ev.RoundStarted(rounds=5))
    with Raw() as raw:
        until(lambda: raw.ask("qry", "status")[0]["result"]["seq"]["life"] == 6)
        reply, (body,) = raw.ask("qry", "replay", params={"stream": "life", "first": 2, "last": 99})
        assert reply["result"] == {"stream": "life", "first": 2, "last": 6, "n": 5, "more": False}
        assert [json.loads(line)["seq"] for line in body.splitlines()] == [2, 3, 4, 5, 6]
        reply, (body,) = raw.ask("qry", "replay", params={"stream": "life", "first": 7, "last": 99})
        assert reply["result"]["n"] == 0
        assert body == b""
    assert second.boot != first.boot


def test_a_long_replay_comes_in_parts(server: Server) -> None:
    for _ in range(40):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message="y" * 60_000))
    with Raw() as raw:
        until(lambda: raw.ask("qry", "status")[0]["result"]["seq"]["log"] == 40)
        seqs: list[int] = []
        parts = 0
        more = True
        while more:
            params = {"stream": "log", "first": len(seqs) + 1, "last": 40}
            reply, (body,) = raw.ask("qry", "replay", params=params)
            more = reply["result"]["more"]
            seqs += [json.loads(line)["seq"] for line in body.splitlines()]
            parts += 1
    assert seqs == list(range(1, 41))
    assert parts > 1


def test_a_range_that_the_journal_lost_is_named(server: Server) -> None:
    for i in range(3):
        server.emitter.emit(ev.RoundStarted(rounds=i))
    with Raw() as raw:
        until(lambda: raw.ask("qry", "status")[0]["result"]["seq"]["life"] == 4)
        ring = server._publisher.rings["life"]
        ring.clear()
        os.truncate(server.run.events, 0)
        reply, _ = raw.ask("qry", "replay", params={"stream": "life", "first": 1, "last": 2})
    assert reply["error"]["data"]["kind"] == "range_gone"
    assert reply["error"]["data"]["newest"] == 4
    assert (
        reply["error"]["message"]
        == f"life 1..2 is no longer held; go on at {reply['error']['data']['oldest']}"
    )


def test_what_a_full_queue_refused_is_told(server: Server) -> None:
    for i in range(30_000):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(i)))
    with Raw() as raw:
        until(lambda: raw.ask("qry", "status")[0]["result"]["queued"]["log"] == 0)
        status = raw.ask("qry", "status")[0]["result"]
    dropped = status["dropped"]["log"]
    assert dropped > 0
    assert status["seq"]["log"] + dropped == 30_000
    server.close()
    losses = [e.data for e in read(server.run.events) if e.type == "telemetry.lost"]
    assert sum(loss.count for loss in losses) == dropped
    assert all(loss.stream == "log" for loss in losses)


def test_an_event_that_cannot_be_encoded_costs_only_itself(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.emitter.emit(ev.RoundStarted(rounds=1))
    server.emitter.emit(ev.RoundStarted(rounds={1, 2}))  # type: ignore[arg-type]
    server.emitter.emit(ev.RoundStarted(rounds=3))
    with Raw() as raw:
        until(lambda: raw.ask("qry", "status")[0]["result"]["unencodable"] == 1)
    server.close()
    rounds = [e.data.rounds for e in read(server.run.events) if e.type == "round.started"]
    assert rounds == [1, 3]
    assert "round.started was left out" in caplog.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=4), st.sampled_from(["qry", "ctl"]))
def test_junk_gets_an_error_and_the_daemon_lives(server: Server, frames: list[bytes], name: str) -> None:
    with Raw() as raw:
        dealer = raw.open(zmq.DEALER, name)
        dealer.send_multipart(frames)
        reply = dealer.recv_multipart()
        assert "error" in json.loads(reply[-1])
    assert server.error is None


def test_too_large_is_answered_far_too_large_costs_the_connection(server: Server) -> None:
    with Raw() as raw:
        dealer = raw.open(zmq.DEALER, "ctl")
        dealer.send_multipart([b"", b'{"id":"1","method":"pause"}' + b" " * MAX_REQUEST_BYTES])
        assert json.loads(dealer.recv_multipart()[-1])["error"]["data"]["kind"] == "too_large"
        dealer.send_multipart([b"", b" " * (MAX_INBOUND_BYTES + 1)])
        assert not dealer.poll(200)
        assert raw.ask("qry", "ping")[0]["result"] == {}
    assert not server.mailbox.poll()


def test_wrong_socket_types_do_no_harm(server: Server) -> None:
    with Raw() as raw:
        for kind in (zmq.PUSH, zmq.PUB, zmq.PAIR):
            for name in ("ev", "qry", "ctl"):
                socket = raw.open(kind, name)
                socket.send(b"x" * 1000, zmq.NOBLOCK) if kind == zmq.PUB else None
        xsub = raw.open(zmq.XSUB, "ev")
        for frame in (b"\x01", b"\x01" + b"t" * 10_000, b"\x02?", b"", b"\x00never"):
            xsub.send(frame)
        assert raw.ask("qry", "ping")[0]["result"] == {}
        until(lambda: raw.ask("qry", "ping"))
    assert server.error is None


def test_askers_who_leave_before_the_answer_do_no_harm(server: Server) -> None:
    with Raw() as raw:
        for _ in range(20):
            dealer = raw.open(zmq.DEALER, "qry")
            dealer.set(zmq.LINGER, 1000)
            for i in range(50):
                dealer.send_multipart([b"", b'{"id":"%d","method":"hello"}' % i])
            dealer.close()
        assert raw.ask("qry", "ping")[0]["result"] == {}
    assert server.error is None


def test_sockets_are_for_the_owner_and_gone_afterwards(server: Server) -> None:
    paths = [ipc_path(endpoint) for endpoint in find_run().connection.endpoints.values()]  # type: ignore[union-attr]
    for path in paths:
        status = path.lstat()
        assert stat.S_ISSOCK(status.st_mode)
        assert status.st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o777 == 0o700
    server.close()
    assert not any(path.exists() for path in paths)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_cannot_command(server: Server) -> None:
    """Even where the folder's mode would let them in, the kernel's word on who asks is checked."""
    folder = ipc_path(find_run().connection.endpoints["ctl"]).parent  # type: ignore[union-attr]
    for path in (folder.parent.parent.parent, folder.parent.parent, folder.parent, folder):
        path.chmod(0o777)
    for path in folder.iterdir():
        path.chmod(0o777)
    script = (
        "import os, sys, zmq; os.setgid(12345); os.setuid(12345)\n"
        "s = zmq.Context().socket(zmq.REQ); s.linger = 0; s.connect(sys.argv[1])\n"
        "s.rcvtimeo = int(sys.argv[3])\n"
        "s.send_json({'jsonrpc': '2.0', 'id': '1', 'method': sys.argv[2]})\n"
        "try: print(s.recv())\nexcept zmq.Again: print('silence')\n"
    )
    endpoints = find_run().connection.endpoints  # type: ignore[union-attr]
    ask = [sys.executable, "-c", script]
    mine = subprocess.run(
        [*ask, endpoints["qry"], "ping", "60000"], capture_output=True, text=True, check=True
    )
    assert "result" in mine.stdout
    theirs = subprocess.run(
        [*ask, endpoints["ctl"], "stop", "1000"], capture_output=True, text=True, check=True
    )
    assert theirs.stdout == "silence\n"
    assert not server.mailbox.poll()


def test_the_sockets_of_a_daemon_that_died_are_taken_over(start: Start) -> None:
    first = start()
    folder = first.run.socket_folder()
    first.close()
    first.run.release()
    for name in ("ev", "qry", "ctl"):
        (folder / name).write_text("left behind")
    start()
    with Raw() as raw:
        assert raw.ask("qry", "ping")[0]["result"] == {}


def test_a_folder_that_cannot_be_used_stops_the_start(home: Any) -> None:
    (home.parent / "run" / "esper").mkdir()
    (home.parent / "run" / "esper").chmod(0o755)
    with RunFolder.claim("alpha") as run:
        server = Server(run, hello={})
        with pytest.raises(FolderError, match="open to others"):
            server.start()
        server.close()
        (home.parent / "run" / "esper").chmod(0o700)
        again = Server(run, hello={})
        again.start()
        again.close()


def test_closing_delivers_what_was_emitted_and_never_hangs(server: Server) -> None:
    """A reader that takes nothing, an asker that reads nothing, and a queue full of events."""
    with Raw() as raw:
        frozen = raw.open(zmq.SUB, "ev")
        frozen.set(zmq.RCVHWM, 1)
        frozen.subscribe(b"")
        dealer = raw.open(zmq.DEALER, "qry")
        for i in range(50):
            dealer.send_multipart([b"", b'{"id":"%d","method":"schema"}' % i])
        until(lambda: server.subscribers == 0 and server.counters["requests"] >= 50)
        for i in range(20_000):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        thread = threading.Thread(target=server.close)
        thread.start()
        thread.join(300)
        assert not thread.is_alive()
    assert server.error is None
    rounds = [e.data.rounds for e in read(server.run.events) if e.type == "round.started"]
    assert rounds == list(range(20_000))


def test_closing_twice_is_closing_once(server: Server) -> None:
    server.close()
    server.close()
    server.emitter.emit(ev.RoundStarted(rounds=1))


def test_defect_in_wire_thread_is_logged_and_trainer_continues(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server._publisher, "tick", lambda: 1 / 0)
    assert until(lambda: server.error) == "ZeroDivisionError: division by zero"
    assert until(lambda: "training goes on" in caplog.text)  # it is logged after that
    for i in range(100):
        server.emitter.emit(ev.RoundStarted(rounds=i))
    server.set_state("STOPPING")
    server.close()
