"""Answers of `op.get` and `op.list` about a command, from its acceptance to its end, over real sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.journal.command_log import CommandLog
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.queries import MAX_ENDED
from esper_overwatch.protocol.server.rate_limiter import RateLimiter
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import until


def test_a_command_is_known_from_its_answer_to_its_end(server: Server) -> None:
    with connect("alpha", client="me") as client:
        id_ = client.escalate(epochs=4)["id"]
        assert client.op(id_)["state"] == "waiting", "known as soon as it is accepted"
        (command,) = server.mailbox.poll()
        server.progress(command, 1, 4)
        until(lambda: client.op(id_)["state"] == "running")
        assert (client.op(id_)["done"], client.op(id_)["total"]) == (1, 4)
        server.done(command, {"level": "NORMAL"})
        op = until(lambda: (op := client.op(id_))["state"] == "done" and op)
        assert op["result"] == {"level": "NORMAL"}
        assert (op["client"], op["method"]) == ("me", "telemetry.escalate")
        assert op["uid"] is not None
        assert op["accepted"] <= op["ended"]
        assert [o["op"] for o in client.ops()] == [id_]


def test_each_command_ends_done_failed_or_cancelled(server: Server) -> None:
    with connect("alpha") as client:
        ids = [client.checkpoint(tag)["id"] for tag in "abcdefghijklmnopqrstuvwxyz"]
        first, second, *rest = server.mailbox.poll()
        server.failed(first, "cancelled", "by bob")
        server.failed(second, "internal", "disk full")
        for command in rest:
            server.done(command, {})
        until(lambda: client.op(ids[-1])["state"] == "done")
        ops = {op["op"]: op for op in client.ops()}
        assert [ops[id_]["state"] for id_ in ids] == ["cancelled", "failed"] + ["done"] * 24
        assert ops[ids[1]]["error"] == {"kind": "internal", "message": "disk full"}


def test_an_unknown_operation_is_not_found(server: Server) -> None:
    with connect("alpha") as client, pytest.raises(RequestError) as error:
        client.op("never")
    assert error.value.kind == "not_found"


def test_a_command_without_the_trainer_is_done_with_its_answer(server: Server) -> None:
    with connect("alpha", client="me") as client:
        id_ = client.mark("a note")["id"]
        until(lambda: client.op(id_)["state"] == "done")
        server.emitter.emit(ev.RoundStarted(rounds=1))
        until(lambda: server.flush())
        assert client.rotate()["bytes"] > 0
        granted = client.acquire_lease(5, "alone")
        assert client.status()["lease"]["note"] == "alone"
        with connect("alpha", client="other") as other, pytest.raises(RequestError, match="me alone"):
            other.pause()
        with connect("alpha", lease=granted["lease"]) as friend:
            assert friend.pause()["state"] == "accepted"
        assert client.release_lease()["released"]
        asked = {row["client"]: row for row in client.clients()}
        assert asked["me"]["requests"] >= 5
        assert asked["other"]["pid"] == asked["me"]["pid"]


def test_lease_ends_with_its_boot(start: Callable[..., Server]) -> None:
    """The next boot tells nothing of it, obeys anybody, and passes over the old lease in a command."""
    first = start("beta")
    with connect("beta", client="me") as client:
        lease = client.acquire_lease(3600, "alone")["lease"]
    first.close()
    first.run.release()
    second = start("beta")
    assert second.boot != first.boot
    with connect("beta", client="other") as other, connect("beta", lease=lease) as holder:
        assert other.status()["lease"] is None
        assert other.pause()["state"] == "accepted"
        assert holder.pause()["state"] == "accepted"
    until(lambda: second.flush())
    states = [event.data.state for event in read(second.run.events) if event.type == "lease"]
    assert states == ["acquired"]


def test_a_client_waits_where_it_asks_too_often(server: Server) -> None:
    """The library comes back after `retry_after_ms`, and is answered.

    At this rate the second request comes too early, however long a busy machine takes for the first.
    """
    server._handler.clients = RateLimiter(per_second=1.0, burst=1.0)
    with connect("alpha") as client:
        for _ in range(2):
            client.ping()
    assert server.counters["too_often"] > 0


def test_only_so_many_ended_ones_are_remembered() -> None:
    operations = CommandLog(max_ended=MAX_ENDED)
    for n in range(MAX_ENDED + 50):
        accepted = ev.CommandAccepted(id=f"{n}", method="pause", params={}, client="c")
        operations.fold(accepted, ts=n)
        operations.fold(ev.CommandDone(id=f"{n}", method="pause", result={}, seconds=0.0), ts=n)
        operations.fold(accepted, ts=n)
    assert len(operations.records()) == MAX_ENDED
    assert operations.get("0") is None
    assert operations.get(f"{MAX_ENDED + 49}") is not None
