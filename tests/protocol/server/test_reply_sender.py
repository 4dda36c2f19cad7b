"""Clients that ask and do not read: what waits for them is bounded, and the log stays short."""

from __future__ import annotations

import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.server import reply_sender
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import until
from tests.protocol.raw import Raw

REPLAY = b'{"jsonrpc":"2.0","id":"%d","method":"replay","params":{"stream":"log","first":1,"last":9999}}'


def test_unread_answers_are_bounded_over_all_connections(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty connections of one process, each asking for half a MiB ten times: 200 MiB without a bound."""
    monkeypatch.setattr(reply_sender, "MAX_WAITING_BYTES", 4 * 1024 * 1024)
    for n in range(128):
        server.emitter.emit(ev.LogLine(level="INFO", logger="t", message=f"{n} " + "x" * 4096))
    assert server.flush()
    with Raw() as raw:
        silent = []
        for _ in range(40):
            dealer = raw.open(zmq.DEALER, "qry")
            dealer.set(zmq.RCVHWM, 1)
            for n in range(10):
                dealer.send_multipart([b"", REPLAY % n])
            silent.append(dealer)
        until(lambda: server.counters["requests"] >= 400)
        assert 4 * 1024 * 1024 <= server.counters["unread_bytes"] < 6 * 1024 * 1024
        for dealer in silent:
            dealer.close(linger=0)
        until(lambda: server.counters["unread_bytes"] == 0)
    with connect("alpha") as run:
        assert len(run.snapshot(["log"])) > 0


def test_lost_answers_are_counted_and_logged_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def refuse(*_: object, **__: object) -> None:
        raise zmq.ZMQError(zmq.EHOSTUNREACH)

    class Gone:
        send_multipart = staticmethod(refuse)

    sender = server._replies
    for _ in range(1000):
        sender.send(Gone(), [b"id", b"", b"{}"], Peer())  # type: ignore[arg-type]
    assert sender.undelivered == 1000
    assert caplog.text.count("could not be delivered") == 1
