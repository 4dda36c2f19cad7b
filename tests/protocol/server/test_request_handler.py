"""The rules a request goes through, without sockets."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from esper_overwatch.protocol.errors import ERRORS, RequestError
from esper_overwatch.protocol.messages.commands import METHODS, RUN_STATES, EscalateParams, Params, Socket
from esper_overwatch.protocol.messages.events import (
    AnomalyAcknowledged,
    AnomalyMuted,
    CommandAccepted,
    CommandDone,
    CommandRefused,
    Incident,
    Lease,
    Mark,
)
from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.messages.vocabulary import RunState
from esper_overwatch.protocol.server import rate_limiter as clients
from esper_overwatch.protocol.server import reply_cache
from esper_overwatch.protocol.server.immediate_commands import ImmediateCommands
from esper_overwatch.protocol.server.mailbox import MAX_MAILBOX_COMMANDS, Mailbox
from esper_overwatch.protocol.server.reply_cache import MAX_REMEMBERED
from esper_overwatch.protocol.server.request_handler import MAX_REQUEST_BYTES, RequestHandler
from tests.protocol.values import INCIDENT, NEEDED

PEER = Peer(uid=1000, pid=42, role="admin")
CTL = [m for m in METHODS.values() if m.socket == "ctl"]


class Plane:
    """A control server whose state and audit the test sees."""

    def __init__(self) -> None:
        self.state: RunState = "TRAINING"
        self.audit: list[Any] = []
        self.asked: list[tuple[str, Params]] = []
        self.mailbox = Mailbox()
        self.segment = 4096
        self.incident: Incident | None = INCIDENT
        self.server = RequestHandler(
            boot="b00t",
            state=lambda: self.state,
            answer=self.answer,
            mailbox=self.mailbox,
            emit=self.audit.append,
            immediate=ImmediateCommands(self.audit.append, lambda: self.segment, lambda _: self.incident),
        )

    def answer(self, method: str, params: Params) -> tuple[dict[str, Any], bytes | None]:
        self.asked.append((method, params))
        if method == "status":
            raise ZeroDivisionError
        if method == "replay":
            raise RequestError("range_gone", "gone", {"oldest": 5})
        return {"method": method}, b"body" if method == "snapshot" else None

    def send(self, body: bytes, socket: Socket = "ctl") -> dict[str, Any]:
        frames = self.server.handle(socket, [b"id", b"", body], PEER)
        assert frames is not None
        assert frames[:2] == [b"id", b""]
        return dict(json.loads(frames[2]))

    def ask(self, method: str, socket: Socket = "ctl", id_: str | None = None, **more: Any) -> dict[str, Any]:
        return self.send(request(method, id_ or f"{time.time_ns()}", **more), socket)


def request(method: str, id_: str = "1", **more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, **more}).encode()


@pytest.fixture
def plane() -> Plane:
    return Plane()


def kind(reply: dict[str, Any]) -> str:
    assert ERRORS[reply["error"]["data"]["kind"]].code == reply["error"]["code"]
    return str(reply["error"]["data"]["kind"])


@pytest.mark.parametrize("state", RUN_STATES)
@pytest.mark.parametrize("method", METHODS.values(), ids=lambda m: m.name)
def test_every_method_in_every_state(plane: Plane, method: Any, state: RunState) -> None:
    plane.state = state
    reply = plane.ask(method.name, method.socket, params=NEEDED.get(method.name, {}))
    if method.socket == "qry":
        assert plane.asked[0][0] == method.name
    elif state in method.states and method.at == "once":
        assert reply["result"]["state"] == "done"
        assert [type(event) for event in plane.audit][-2:] == [CommandAccepted, CommandDone]
    elif state in method.states:
        assert reply["result"] == {"state": "accepted"}
        assert [c.method for c in plane.mailbox.poll()] == [method.name]
    else:
        assert kind(reply) == ("shutting_down" if state == "STOPPING" else "wrong_state")
        assert reply["error"]["data"]["state"] == state
        assert reply["error"]["data"]["allowed"] == list(method.states)
        assert not plane.mailbox.poll()


def test_an_accepted_command_reaches_the_trainer_whole(plane: Plane) -> None:
    before = time.monotonic()
    reply = plane.ask(
        "telemetry.escalate",
        id_="x1",
        params={"epochs": 7, "env": 3},
        meta={"client": "me", "reason": "curious"},
    )
    assert reply == {
        "jsonrpc": "2.0",
        "id": "x1",
        "result": {"state": "accepted"},
        "meta": {"boot": "b00t", "ts": reply["meta"]["ts"], "replayed": False},
    }
    (command,) = plane.mailbox.poll()
    assert command.params == EscalateParams(epochs=7, env=3)
    assert (command.id, command.client, command.uid, command.pid) == ("x1", "me", 1000, 42)
    assert before <= command.received <= time.monotonic()
    assert plane.audit == [
        CommandAccepted(
            id="x1",
            method="telemetry.escalate",
            params={"level": "DEBUG", "epochs": 7, "env": 3},
            client="me",
            uid=1000,
            pid=42,
            reason="curious",
        )
    ]


def test_who_gives_no_name_is_named_by_the_kernel(plane: Plane) -> None:
    plane.ask("pause")
    assert plane.mailbox.poll()[0].client == "pid 42"


@pytest.mark.parametrize(
    ("params", "path", "text"),
    [
        ({"epochs": 0}, "$.epochs", "epochs must be a whole number, at least 1, at most 10000, not 0"),
        ({"epochs": "5"}, "$.epochs", 'not "5"'),
        ({"epochs": 10_001}, "$.epochs", "at most 10000"),
        ({"level": "LOUD"}, "$.level", "must be one of DEBUG"),
        ({"colour": 1}, "$", "colour is not a parameter"),
    ],
)
def test_bad_parameters_are_refused_with_their_path(plane: Plane, params: Any, path: str, text: str) -> None:
    reply = plane.ask("telemetry.escalate", params=params)
    assert kind(reply) == "invalid_params"
    assert reply["error"]["data"]["path"] == path
    assert text in reply["error"]["message"]
    assert isinstance(plane.audit[0], CommandRefused)
    assert plane.audit[0].code == -32602
    assert not plane.mailbox.poll()


@pytest.mark.parametrize("tag", ["a b", "a/b", "x" * 33, "a\n", "é"])
def test_a_tag_that_is_no_part_of_a_file_name(plane: Plane, tag: str) -> None:
    assert kind(plane.ask("checkpoint", params={"tag": tag})) == "invalid_params"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "parse"),
        (b"{", "parse"),
        (b"\xff\xfe", "parse"),
        (b'{"id":"1","method":"pause","params":{"a":' + b"[" * 200_000, "parse"),
        (b"[]", "invalid_request"),
        (b'"pause"', "invalid_request"),
        (b'{"method":"pause"}', "invalid_request"),
        (b'{"id":"1"}', "invalid_request"),
        (b'{"id":1,"method":"pause"}', "invalid_request"),
        (b'{"id":"","method":"pause"}', "invalid_request"),
        (b'{"id":"1","method":"pause","params":[]}', "invalid_request"),
        (b'{"id":"1","method":"pause","jsonrpc":"1.0"}', "invalid_request"),
        (b'{"id":"1","method":"pause","meta":{"deadline":"soon"}}', "invalid_request"),
        (b'{"id":"1","method":"' + b"x" * MAX_REQUEST_BYTES + b'"}', "too_large"),
        (b'{"id":"1","method":"jump"}', "unknown_method"),
        (b'{"id":"1","method":"status"}', "unknown_method"),
        (b'{"id":"1","method":"pause","meta":{"v":9}}', "version"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:30]),
)
def test_what_is_no_request_gets_a_typed_error(plane: Plane, body: bytes, expected: str) -> None:
    reply = plane.send(body)
    assert kind(reply) == expected
    assert reply["error"]["message"]
    assert not plane.mailbox.poll()


def test_an_error_carries_the_id_where_there_is_one(plane: Plane) -> None:
    assert plane.send(b'{"id":"abc","method":3}')["id"] == "abc"
    assert plane.send(b'{"id":7,"method":"pause"}')["id"] is None


def test_a_method_of_the_other_socket_says_where_it_is(plane: Plane) -> None:
    assert "it is on the qry socket" in plane.ask("status")["error"]["message"]
    reply = plane.ask("pause", "qry")
    assert "it is on the ctl socket" in reply["error"]["message"]
    assert "hello" in reply["error"]["data"]["known"]


def test_too_late_is_not_carried_out(plane: Plane) -> None:
    now = time.time_ns() // 1000
    reply = plane.ask("stop", meta={"deadline": now - 2_000_000})
    assert kind(reply) == "deadline"
    assert "too late and was not executed" in reply["error"]["message"]
    assert (
        f"was {now - 2_000_000}, and it is {reply['error']['data']['now']}, in" in reply["error"]["message"]
    )
    assert not plane.mailbox.poll()
    reply = plane.ask("stop", meta={"deadline": time.time_ns()})
    assert (kind(reply), reply["error"]["data"]["path"]) == ("invalid_request", "$.meta.deadline")
    assert "is more than a day ahead: it is" in reply["error"]["message"]
    assert "result" in plane.ask("stop", meta={"deadline": now + 10_000_000})


def test_conditions(plane: Plane) -> None:
    assert kind(plane.ask("pause", meta={"expect": {"boot": "other"}})) == "boot_mismatch"
    assert kind(plane.ask("pause", meta={"expect": {"state": "STARTING"}})) == "wrong_state"
    assert not plane.mailbox.poll()
    assert "result" in plane.ask("pause", meta={"expect": {"boot": "b00t", "state": "TRAINING"}})


def test_the_same_request_again_is_carried_out_once(plane: Plane) -> None:
    replies = [plane.ask("pause", id_="same") for _ in range(10)]
    assert [r["meta"]["replayed"] for r in replies] == [False] + [True] * 9
    assert all(r["result"] == {"state": "accepted"} for r in replies)
    assert len(plane.mailbox.poll()) == 1
    assert len(plane.audit) == 1


def test_a_refusal_is_repeated_too(plane: Plane) -> None:
    assert kind(plane.ask("resume", id_="same")) == "wrong_state"
    plane.state = "PAUSED"
    again = plane.ask("resume", id_="same")
    assert kind(again) == "wrong_state"
    assert again["meta"]["replayed"]
    assert not plane.mailbox.poll()


def test_id_with_another_body_is_refused_first_stays(plane: Plane) -> None:
    plane.ask("pause", id_="same")
    assert kind(plane.ask("stop", id_="same")) == "id_reused"
    assert plane.ask("pause", id_="same")["meta"]["replayed"]
    assert [c.method for c in plane.mailbox.poll()] == ["pause"]


def test_ids_are_forgotten_by_number_and_by_age(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.server.clients = clients.RateLimiter(burst=1e9)
    plane.ask("pause", id_="old")
    for i in range(MAX_REMEMBERED):
        plane.ask("pause", id_=f"n{i}")
        plane.mailbox.poll()
    assert not plane.ask("pause", id_="old")["meta"]["replayed"]
    assert plane.ask("pause", id_="n5")["meta"]["replayed"]
    monkeypatch.setattr(reply_cache, "REMEMBERED_SECONDS", -1.0)
    assert not plane.ask("pause", id_="n5")["meta"]["replayed"]


def test_a_full_mailbox_says_when_to_come_back(plane: Plane) -> None:
    for i in range(MAX_MAILBOX_COMMANDS):
        assert "result" in plane.ask("pause", id_=f"{i}")
    reply = plane.ask("pause", id_="one more")
    assert kind(reply) == "overloaded"
    assert reply["error"]["data"]["retryable"]
    assert reply["error"]["data"]["retry_after_ms"] > 0
    assert "result" in plane.ask("stop"), "others must not keep it out"
    assert len(plane.mailbox.poll()) == MAX_MAILBOX_COMMANDS + 1
    assert "result" in plane.ask("pause", id_="one more"), "what may be retried is not remembered"


def test_queries_are_answered_by_type(plane: Plane) -> None:
    assert plane.ask("ping", "qry")["result"] == {"method": "ping"}
    frames = plane.server.handle("qry", [b"id", b"", request("snapshot")], PEER)
    assert frames is not None
    assert frames[3] == b"body"
    gone = plane.ask("replay", "qry", params={"stream": "life", "first": 1, "last": 2})
    assert kind(gone) == "range_gone"
    assert gone["error"]["data"]["oldest"] == 5
    assert not plane.audit, "queries are no audit matter"


def test_a_defect_of_ours_is_an_internal_error(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    assert kind(plane.ask("status", "qry")) == "internal"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([], None),
        ([b"id"], [b"id"]),
        ([b"id", b""], [b"id", b""]),
        ([b"id", b"", b"a", b"b"], [b"id", b""]),
        ([b"id", b"{}"], [b"id"]),
        ([b"id", b"hop", b"", b"{}"], [b"id", b"hop", b""]),
    ],
)
def test_whoever_can_be_answered_is(plane: Plane, frames: list[bytes], expected: list[bytes] | None) -> None:
    answer = plane.server.handle("ctl", frames, PEER)
    if expected is None:
        assert answer is None
    else:
        assert answer is not None
        assert answer[:-1] == expected
        assert "error" in json.loads(answer[-1])
    assert plane.server.junk == 1


@pytest.mark.parametrize(
    ("address", "peer"),
    [("localhost:1000:100:4242", Peer(1000, 4242)), ("127.0.0.1", Peer()), ("", Peer()), ("a:b:c:d", Peer())],
)
def test_peer_address(address: str, peer: Peer) -> None:
    assert Peer.parse(address) == peer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The rate limiter's, which stands still."""
    clock = SimpleNamespace(now=5.0, monotonic=lambda: clock.now, time_ns=time.time_ns)
    monkeypatch.setattr(clients, "time", clock)
    return clock


@pytest.mark.usefixtures("clock")
def test_connection_over_its_rate_learns_when_to_retry(plane: Plane) -> None:
    kinds = [plane.ask("ping", "qry") for _ in range(300)]
    refused = [r for r in kinds if "error" in r]
    assert len(kinds) - len(refused) == clients.BURST_REQUESTS
    assert {kind(r) for r in refused} == {"overloaded"}
    assert all(r["id"] for r in refused), "who asked can tell which request it was"
    assert 0 < refused[-1]["error"]["data"]["retry_after_ms"] <= 10
    other = plane.server.handle("qry", [b"other", b"", request("ping")], PEER)
    assert other is not None
    assert "result" in json.loads(other[2]), "another connection has a rate of its own"


def test_too_often_is_neither_done_nor_remembered_nor_audited(plane: Plane, clock: SimpleNamespace) -> None:
    for _ in range(clients.MAX_CONNECTIONS):
        plane.ask("ping", "qry")
    audited = len(plane.audit)
    assert kind(plane.ask("pause", id_="mine")) == "overloaded"
    assert not plane.mailbox.poll()
    assert len(plane.audit) == audited
    clock.now += 0.05
    assert "result" in plane.ask("pause", id_="mine")


def test_who_has_asked_is_remembered_by_client_and_process(plane: Plane) -> None:
    for _ in range(3):
        plane.ask("ping", "qry", meta={"client": "me"})
    plane.server.handle("qry", [b"2", b"", request("ping", meta={"client": "me"})], PEER)
    plane.server.handle("qry", [b"3", b"", request("ping", meta={"client": "you"})], Peer(uid=1, pid=2))
    you, me = plane.server.clients.list()
    assert (you["client"], you["uid"], you["pid"], you["requests"]) == ("you", 1, 2, 1)
    assert (me["client"], me["pid"], me["requests"], me["connections"]) == ("me", 42, 4, 2)
    assert me["first"] <= me["last"] <= time.time_ns() // 1000


def lease(plane: Plane, ttl: float = 60.0) -> str:
    reply = plane.ask("lease.acquire", params={"ttl": ttl, "note": "sweep"}, meta={"client": "alice"})
    return str(reply["result"]["lease"])


def test_while_a_lease_is_held_only_its_holder_commands(plane: Plane) -> None:
    token = lease(plane)
    refused = plane.ask("pause", meta={"client": "bob"})
    assert kind(refused) == "leased"
    assert refused["error"]["data"]["holder"] == "alice"
    assert "alice alone may command for another 60 s (sweep)" in refused["error"]["message"]
    assert kind(plane.ask("lease.acquire", meta={"client": "bob"})) == "leased"
    assert kind(plane.ask("lease.release", meta={"client": "bob"})) == "leased"
    assert "result" in plane.ask("pause", meta={"lease": token})
    assert "result" in plane.ask("ping", "qry"), "questions are free"
    assert plane.ask("lease.release", meta={"lease": token})["result"]["released"]
    assert "result" in plane.ask("stop")


def test_lease_is_lengthened_by_its_holder_and_expires(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    token = lease(plane)
    again = plane.ask("lease.acquire", params={"ttl": 90}, meta={"lease": token})["result"]
    assert again["lease"] == token
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 91.0)
    assert "result" in plane.ask("pause")
    assert [e.state for e in plane.audit if isinstance(e, Lease)] == ["acquired", "renewed", "expired"]


def test_a_lease_can_be_broken_and_that_is_told(plane: Plane) -> None:
    lease(plane)
    assert plane.ask("lease.release", params={"force": True}, meta={"client": "bob"})["result"]["released"]
    broken = [e for e in plane.audit if isinstance(e, Lease)][-1]
    assert (broken.state, broken.holder, broken.by) == ("broken", "alice", "bob")
    assert not plane.ask("lease.release")["result"]["released"], "there is none any more"


def test_a_mark_is_an_event_with_who_made_it(plane: Plane) -> None:
    plane.ask("mark", params={"text": "here"}, meta={"client": "me"})
    assert Mark(text="here", client="me", uid=1000, pid=42) in plane.audit
    for text in ("", "x" * 257):
        assert kind(plane.ask("mark", params={"text": text})) == "invalid_params"


def test_a_journal_that_cannot_be_rotated_is_told(plane: Plane) -> None:
    assert plane.ask("log.rotate")["result"] == {"state": "done", "bytes": 4096}
    plane.segment = 0
    assert kind(plane.ask("log.rotate")) == "busy"


def test_the_trainer_may_refuse_parameters_before_they_are_accepted(plane: Plane) -> None:
    def no(_: Params) -> None:
        raise RequestError("invalid_params", "no such env", {"path": "$.env"})

    plane.server._check_params = no
    assert kind(plane.ask("seed.prune", params=NEEDED["seed.prune"])) == "invalid_params"
    assert not plane.mailbox.poll()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
near_requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": st.text(max_size=70) | json_values,
        "method": st.sampled_from(sorted(METHODS)) | st.text(max_size=8) | json_values,
        "params": st.dictionaries(
            st.sampled_from(["tag", "level", "epochs", "env", "mode", "stream", "first", "last", "x"]),
            json_values,
            max_size=3,
        )
        | json_values,
        "meta": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("v", "expect", "deadline", "client", "reason"), json_values)
        )
        | json_values,
    },
)
junk = st.binary(max_size=60) | near_requests.map(lambda value: json.dumps(value).encode())


@given(st.sampled_from(["qry", "ctl"]), st.lists(junk, min_size=1, max_size=4))
@example("ctl", [b'{"jsonrpc": "2.0", "id": "1", "method": "lease.acquire", "params": {}}'])
@example("ctl", [b'{"jsonrpc": "2.0", "id": "1", "method": "pause", "params": {}}'])
def test_no_message_goes_without_an_answer_or_harms(socket: Socket, frames: list[bytes]) -> None:
    plane = Plane()
    answer = plane.server.handle(socket, [b"id", *frames], PEER)
    assert answer is not None
    reply = json.loads(answer[-2] if answer[-1] == b"body" else answer[-1])
    assert ("result" in reply) != ("error" in reply)
    assert kind(reply) if "error" in reply else True
    is_accepted = socket == "ctl" and "result" in reply and reply["result"].get("state") == "accepted"
    assert len(plane.mailbox.poll()) == is_accepted, "what is executed at once does not wait"
    assert "result" in plane.ask("ping", "qry"), "it answers the next one"


def test_every_immediate_command_of_the_table_has_its_handler() -> None:
    at_once = {method.name for method in CTL if method.at == "once"}
    assert set(ImmediateCommands(lambda _: None, lambda: 0, lambda _: None).handlers) == at_once


def test_incidents_are_acknowledged_and_muted_for_all(plane: Plane) -> None:
    about = {"incident": INCIDENT.id}
    plane.ask("lease.acquire", params={"ttl": 60})
    seen = plane.ask(
        "anomaly.acknowledge",
        params={**about, "severity": "warning"},
        meta={"client": "ann", "reason": "known"},
    )
    assert seen["result"]["state"] == "done"
    muted = plane.ask("anomaly.mute", params={**about, "seconds": 60}, meta={"client": "ann"})
    assert muted["result"]["until"] > time.time_ns() // 1000
    assert plane.ask("anomaly.mute", params={**about, "seconds": 0})["result"]["until"] == 0
    found = [event for event in plane.audit if isinstance(event, AnomalyAcknowledged | AnomalyMuted)]
    assert [type(event) for event in found] == [AnomalyAcknowledged, AnomalyMuted, AnomalyMuted]
    assert (found[0].by, found[0].reason, found[0].incident) == ("ann", "known", INCIDENT.id)
    plane.incident = None
    refused = plane.ask("anomaly.acknowledge", params={"incident": "b00t-9"})
    assert kind(refused) == "not_found"
    assert "b00t-9 is not open: give" in refused["error"]["message"]
