"""Requests of a subscriber: answered, refused, given up; never executed late."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.client.requests import RESEND_SECONDS
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.server import admission, request_handler
from esper_overwatch.protocol.server import server as server_module
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Daemon, Reader, Start, freeze

pytestmark = pytest.mark.usefixtures("quick_heartbeat")


def replies(reader: Reader) -> list[RequestOutcome]:
    return [item for item in reader.items if isinstance(item, RequestOutcome)]


def test_a_request_is_answered_and_its_effect_seen(server: Server, reader: Callable[..., Reader]) -> None:
    one = reader()
    id_ = one.subscriber.request("pause", reason="tea")
    assert [call.id for call in one.subscriber.pending] == [id_]
    one.read(lambda: replies(one))
    (reply,) = replies(one)
    assert (reply.id, reply.method, reply.result, reply.error) == (id_, "pause", {"state": "accepted"}, None)
    assert reply.rtt_seconds > 0
    assert not one.subscriber.pending
    (command,) = server.mailbox.poll()
    assert (command.id, command.client, command.reason) == (id_, "test", "tea")
    server.done(command, {"epoch": 1})
    one.read(lambda: any(e.type == "command.done" and e.data.id == id_ for e in one.events))


def test_a_refusal_is_typed(server: Server, reader: Callable[..., Reader]) -> None:
    one = reader()
    one.subscriber.request("resume")
    one.subscriber.request("telemetry.escalate", {"epochs": -1})
    one.subscriber.request("fly")
    one.read(lambda: len(replies(one)) == 3)
    kinds = [reply.error.kind for reply in replies(one) if reply.error]
    assert kinds == ["wrong_state", "invalid_params", "unknown_method"]


def test_unsendable_request_is_given_up_and_never_executed_late(
    start: Start, reader: Callable[..., Reader]
) -> None:
    one = reader()
    one.subscriber.request("stop", deadline_s=0.2)
    one.read(lambda: replies(one))
    error = replies(one)[0].error
    assert error is not None
    assert error.kind == "no_reply"
    assert "never sent" in error.message
    server = start()
    server.set_state("TRAINING")
    one.read(lambda: one.subscriber.state == "live")
    assert not server.mailbox.poll()


def test_request_to_hung_daemon_is_repeated_never_executed_late(
    reader: Callable[..., Reader], daemon: Callable[..., Daemon]
) -> None:
    process = daemon()
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    freeze(process)
    one.subscriber.request("stop", deadline_s=RESEND_SECONDS + 0.5)
    one.subscriber.request("pause", deadline_s=300)
    one.read(lambda: replies(one))
    error = replies(one)[0].error
    assert error is not None
    assert error.kind == "no_reply"
    assert "it was sent" in error.message
    time.sleep(0.2)  # the deadline is on the daemon's clock, which is known to half a round trip
    process.send_signal(signal.SIGCONT)
    one.read(lambda: len(replies(one)) == 2)
    one.read(lambda: any(e.type == "command.done" for e in one.events))
    commands = [e for e in one.events if e.type.startswith("command.")]
    refused = [e.data.code for e in commands if e.type == "command.refused"]
    assert set(refused) == {-32008}
    assert [e.data.method for e in commands if e.type == "command.accepted"] == ["pause"], (
        "sent twice, done once"
    )


def test_a_request_meant_for_the_boot_before_is_refused(
    start: Start, reader: Callable[..., Reader], daemon: Callable[..., Daemon]
) -> None:
    first = daemon()
    one = reader("alpha")
    one.read(lambda: one.subscriber.state == "live")
    freeze(first)
    one.subscriber.request("stop", deadline_s=300)
    one.subscriber.drain()
    first.kill()
    first.wait()
    second = start()
    second.set_state("TRAINING")
    one.read(lambda: replies(one))
    error = replies(one)[0].error
    assert error is not None
    assert error.kind == "boot_mismatch"
    assert error.data["boot"] == second.boot
    assert not second.mailbox.poll()


@pytest.mark.parametrize("hours", [-60, 1, 24])
def test_requests_go_on_when_a_clock_is_set(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    with connect("alpha") as run:
        seconds = hours * 3_600
        clock = SimpleNamespace(
            monotonic=time.monotonic, sleep=time.sleep, time_ns=lambda: time.time_ns() + seconds * 10**9
        )
        for module in (admission, server_module):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(request_handler, "_now", lambda: clock.time_ns() // 1000)
        run.mark("tea")
        set_at = time.time() + seconds
        one.read(lambda: (beat := one.subscriber.heartbeat) is not None and abs(beat.ts / 1e6 - set_at) < 600)
        one.subscriber.request("mark", {"text": "cake"})
        one.read(lambda: replies(one))
    assert replies(one)[0].error is None
    one.read(lambda: len([e for e in one.events if e.type == "mark"]) == 2)


def test_request_that_cannot_be_encoded_fails_alone(server: Server, reader: Callable[..., Reader]) -> None:
    one = reader()
    one.subscriber.request("mark", {"text": {1, 2}})
    one.subscriber.request("mark", {"text": 1 << 80})
    one.subscriber.request("mark", {"text": "tea \udc9b \ud800"})
    one.subscriber.request("pause")
    one.read(lambda: len(replies(one)) == 4)
    kinds = [reply.error and reply.error.kind for reply in replies(one)]
    assert sorted(kinds, key=str) == [None, None, "invalid_params", "invalid_params"]
    one.read(lambda: any(e.type == "mark" for e in one.events))
    assert [e.data.text for e in one.events if e.type == "mark"] == [r"tea \udc9b \ud800"]
    assert [command.method for command in server.mailbox.poll()] == ["pause"]


def test_client_goes_on_after_text_without_utf8(server: Server) -> None:
    with connect(server.run.name, client="\udc9b") as client:
        client.mark("\ud800")
        with pytest.raises(RequestError, match="the parameters of mark cannot be encoded"):
            client.mark(object())  # type: ignore[arg-type]
        client.mark("after")
        assert [row["client"] for row in client.clients()] == [r"\udc9b"]
