from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.codec.zmq_options import terminate_context
from esper_overwatch.protocol.errors import NoReply, RequestError, RunNotFound
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import DAEMON, Start, freeze, until


@pytest.fixture
def trainer(server: Server) -> Iterator[Server]:
    """A server with something like a trainer behind it, which obeys."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            server.mailbox.wait(0.05)
            for command in server.mailbox.poll():
                if command.method == "checkpoint" and command.params.tag == "full":  # type: ignore[attr-defined]
                    server.failed(command, "internal", "no space left on device")
                    continue
                if command.method in ("pause", "resume"):
                    server.set_state("PAUSED" if command.method == "pause" else "TRAINING")
                server.done(command, {"did": command.method})

    thread = threading.Thread(target=work)
    thread.start()
    yield server
    stop.set()
    thread.join()


COMMANDS: list[tuple[str, dict[str, Any], str]] = [
    ("pause", {}, "pause"),
    ("checkpoint", {"tag": "x"}, "checkpoint"),
    ("stop", {"mode": "after_round", "checkpoint": False}, "stop"),
    ("escalate", {"level": "DEBUG", "epochs": 3, "env": 1}, "telemetry.escalate"),
    ("profile", {"epochs": 1, "with_update": True}, "profiler.start"),
    ("stop_profile", {}, "profiler.stop"),
]


@pytest.mark.parametrize(("name", "arguments", "method"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_each_command_waits_for_its_effect(
    trainer: Server, name: str, arguments: dict[str, Any], method: str
) -> None:
    with connect("alpha", client="me") as run:
        result = getattr(run, name)(**arguments, wait=True, reason="test")
        assert result["did"] == method
        accepted = next(e.data for e in run.snapshot() if e.type == "command.accepted")
    assert accepted.id == result["id"]
    assert (accepted.method, accepted.client, accepted.reason) == (method, "me", "test")
    assert arguments.items() <= accepted.params.items()


def test_pause_and_resume(trainer: Server) -> None:
    with connect() as run:
        accepted = run.pause()
        assert accepted["state"] == "accepted"
        assert run.wait_for(accepted["id"]) == {"id": accepted["id"], "did": "pause"}
        assert run.status()["state"] == "PAUSED"
        with pytest.raises(RequestError, match="it is paused already") as error:
            run.pause()
        assert (error.value.kind, error.value.exit_code) == ("wrong_state", 4)
        run.resume(wait=True)
        assert run.hello()["state"] == "TRAINING"


def test_what_cannot_be_done_is_an_error_that_says_why(trainer: Server) -> None:
    with connect() as run, pytest.raises(RequestError, match="no space left on device") as error:
        run.checkpoint("full", wait=True)
    assert error.value.kind == "internal"
    assert error.value.exit_code == 7


def test_questions(server: Server) -> None:
    with connect() as run:
        assert 0 < run.ping() < 5
        assert run.status()["name"] == "alpha"
        assert "events" in run.schema()
        until(lambda: [e.type for e in run.snapshot(streams=("life",))] == ["run.state"])
        assert run.snapshot(streams=("log",)) == []


def test_events_from_the_snapshot_on(server: Server) -> None:
    server.emitter.emit(ev.RoundStarted(rounds=1))
    seen = []
    with connect() as run:
        for event in run.events(timeout=300):
            seen.append(event.type)
            if event.type == "round.started":
                server.emitter.emit(ev.LogLine(level="INFO", logger="x", message="y"))
            if event.type == "log":
                break
    assert seen == ["run.state", "round.started", "log"]


def test_nobody_there() -> None:
    with pytest.raises(RunNotFound, match="no live run found") as error:
        connect()
    assert error.value.exit_code == 3


def test_a_run_that_is_starting_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.claim("alpha")
    monkeypatch.setattr("esper_overwatch.protocol.client.sources.LocalRuns.patience_seconds", 0.2)
    with pytest.raises(NoReply, match=r"is starting; given up after 0\.2 s"):
        connect()
    monkeypatch.setattr("esper_overwatch.protocol.client.sources.LocalRuns.patience_seconds", 10.0)
    server = Server(run, hello={})
    threading.Timer(0.2, server.start).start()
    with connect() as client:
        assert client.boot == server.boot
    server.close()
    run.release()


def test_a_daemon_that_ends_is_not_waited_for(server: Server) -> None:
    with connect() as run:
        accepted = run.pause()
        threading.Timer(0.3, server.close).start()
        with pytest.raises(NoReply, match=f"ended before {accepted['id']} took effect"):
            run.wait_for(accepted["id"])


def test_last_word_of_an_ended_daemon_is_in_its_journal(server: Server) -> None:
    """It may be reported between two looks at the wire, and the daemon be gone at the second."""
    with connect() as run:
        accepted = run.pause()
        (command,) = server.mailbox.poll()
        server.done(command, {"stopped": True})
        server.close()
        server.run.release()
        assert run.wait_for(accepted["id"]) == {"id": accepted["id"], "stopped": True}


def test_the_last_word_of_a_daemon_whose_journal_is_elsewhere(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over ssh: it is sent on the wire, once, to those who listen already. Here it is gone before the
    answer to the command is read."""

    def carry_out_and_leave() -> None:
        (command,) = until(server.mailbox.poll)
        server.done(command, {"stopped": True})
        server.close()
        server.run.release()

    def late(self: Client, *args: Any, **kwargs: Any) -> Any:
        answer = exchange(self, *args, **kwargs)
        daemon.join()
        return answer

    exchange, daemon = Client._exchange, threading.Thread(target=carry_out_and_leave)
    with connect() as run:
        monkeypatch.setattr(run, "run", replace(run.run, journal=None))
        monkeypatch.setattr(Client, "_exchange", late)
        daemon.start()
        assert run.stop(wait=True)["stopped"]


def test_patience_has_an_end(server: Server) -> None:
    with connect() as run:
        accepted = run.pause()
        with pytest.raises(NoReply, match=r"has not taken effect after 0\.3 s; it may still"):
            run.wait_for(accepted["id"], timeout=0.3)


def test_who_waits_for_a_hung_trainer_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with connect() as run:
        assert "note" not in run.checkpoint()
        monkeypatch.setattr("esper_overwatch.protocol.server.server.SILENT_SECONDS", 0.0)
        assert "no sign of life for" in run.checkpoint()["note"]
        server.mailbox.poll()
        threading.Thread(target=lambda: server.done(until(server.mailbox.poll)[0], {})).start()
        run.checkpoint(wait=True)
        assert "checkpoint is accepted, but the trainer has shown no sign of life" in caplog.text
        monkeypatch.setattr("esper_overwatch.protocol.server.server.SILENT_SECONDS", 60.0)
        server.beat(1, 1)
        assert "note" not in run.checkpoint()


def test_a_hung_daemon_is_no_reply() -> None:
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, "alpha"], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    daemon.stdout.readline()
    with connect() as run:
        freeze(daemon)
        begin = time.monotonic()
        told = (
            rf"\(pid {daemon.pid}\) did not answer ping within 0\.5 s: "
            rf"it is stopped; kill -CONT {daemon.pid} lets it go on"
        )
        with pytest.raises(NoReply, match=told):
            run.call("ping", deadline_s=0.5)
        assert time.monotonic() - begin >= 0.5
    daemon.kill()
    daemon.communicate()


def test_a_context_that_does_not_end_holds_nobody_up() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect("tcp://127.0.0.1:1")
    socket.send(b"never taken")
    terminate_context(context, patience_seconds=0.2)
    assert not socket.closed, "or there was nothing to wait for"
    socket.close(linger=0)
