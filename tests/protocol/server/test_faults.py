"""Whatever step of the I/O thread fails: the thread lives, the journal is dense, clients are served."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server import faults as faults_module
from esper_overwatch.protocol.server import server as server_module
from esper_overwatch.protocol.server.faults import Faults
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Reader, until
from tests.protocol.raw import Raw


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that beats often."""
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.2)
    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    server.set_state("TRAINING")
    yield server
    server.close()
    server.run.release()


STEPS: dict[str, Callable[[Server], tuple[object, str]]] = {
    "poll": lambda _: (zmq.Poller, "poll"),
    "look for requests": lambda _: (server_module, "is_waiting"),
    "serve requests": lambda server: (server, "_serve_requests"),
    "handle a request": lambda server: (server._handler, "handle"),
    "subscriptions": lambda server: (server._subscriber_counts, "update"),
    "drain": lambda server: (server.emitter, "drain"),
    "losses": lambda server: (server.emitter, "take_losses"),
    "batches": lambda server: (server._publisher._encoder, "take"),
    "snapshot": lambda server: (server._publisher.snapshot, "extend"),
    "append": lambda server: (server._journal, "append"),
    "rotation": lambda server: (server._journal, "_is_rotation_due"),
    "sync": lambda server: (server._journal, "sync"),
    "ring": lambda server: (server._publisher.rings["life"], "extend"),
    "removed segments": lambda server: (server._publisher, "_report_removed"),
    "tick": lambda server: (server._publisher, "tick"),
    "file numbers": lambda server: (server._local, "guard_file_numbers"),
    "sockets": lambda server: (server._local, "restore"),
    "view": lambda server: (server, "_send_view"),
    "leases": lambda server: (server._immediate.leases, "expire"),
    "heartbeat": lambda server: (server, "_send_heartbeat"),
}


def fail_in_wire(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[Exception]:
    """Let the next calls in the wire's threads fail, each with another error; gives those still to come."""
    real = getattr(owner, name)
    errors = [
        OSError(errno.EIO, "Input/output error"),
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        zmq.ZMQError(errno.EMFILE),
    ]

    def fail(*args: Any, **more: Any) -> Any:
        if threading.current_thread().name == "esper-wire" and errors:
            raise errors.pop()
        return real(*args, **more)

    monkeypatch.setattr(owner, name, fail)
    return errors


@pytest.mark.parametrize("step", STEPS)
def test_failing_step_ends_neither_thread_nor_service(
    failing: Server, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader], step: str
) -> None:
    errors = fail_in_wire(monkeypatch, *STEPS[step](failing))
    sent = 0

    def is_over() -> bool:
        """Give each step something to do until it has failed in all ways."""
        nonlocal sent
        sent += 1
        failing.emitter.emit(ev.RoundStarted(rounds=sent))
        with Raw("alpha") as raw:
            dealer = raw.open(zmq.DEALER, "qry")
            dealer.send_multipart([b"", b'{"jsonrpc":"2.0","id":"0","method":"ping"}'])
            raw.subscribe(b"none")
            dealer.poll(20)
        return not errors

    until(is_over)
    one = reader("alpha")
    one.read(lambda: one.subscriber.state == "live")
    for _ in range(20):
        sent += 1
        failing.emitter.emit(ev.RoundStarted(rounds=sent))
    one.read(lambda: any(e.type == "round.started" and e.data.rounds == sent for e in one.events))
    with connect("alpha") as local:
        until(lambda: local.status()["wire"]["failing"] == {})
    failing.close()
    assert failing.error is None
    events = [e for e in read(failing.run.events) if e.stream == "life"]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.data.rounds for e in events if e.type == "round.started"] == list(range(1, sent + 1))


def test_faults_are_counted_and_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(faults_module.time, "monotonic", lambda: clock[0])
    faults = Faults()

    def fail() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    for second in range(120):
        clock[0] = float(second)
        assert faults.attempt("keys", fail) is None
    assert faults.counts == {"keys": 120}
    assert faults.current == {"keys": "OSError: [Errno 24] Too many open files"}
    assert caplog.text.count("training goes on") == 2
    assert faults.attempt("keys", lambda: 1) == 1
    assert faults.current == {}


def test_fault_with_words_for_people_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise FolderError("cannot write connection.json: No space left on device")

    Faults().attempt("sockets", fail)
    (record,) = caplog.records
    assert "connection.json: No space left on device; it is tried again" in record.getMessage()
    assert not record.exc_info
