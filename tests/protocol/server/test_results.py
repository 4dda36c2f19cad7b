"""Answers of methods have the fields of their types, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.messages.events import Anomaly, Mark
from esper_overwatch.protocol.messages.results import Accepted
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import until
from tests.protocol.raw import Raw
from tests.protocol.values import NEEDED, assert_fits

QUERIES = [m.name for m in METHODS.values() if m.socket == "qry"]
AT_ONCE = [m.name for m in METHODS.values() if m.at == "once" and m.socket == "ctl"]
PARAMETER = {
    "value": 0.1,
    "configured": 0.1,
    "allowed": "a number from 0.0 to 1.0",
    "description": "",
    "takes_effect": "update",
}
HELLO = {"task": "digits", "config": {"envs": {"count": 2}}, "execution": {"group_size": 2}}


@pytest.fixture
def told() -> Iterator[Server]:
    """A server that has a command, an event and a lease to tell of."""
    server = Server(
        RunFolder.claim("alpha"),
        hello=HELLO,
        parameters=lambda: {"ppo.learning_rate": PARAMETER},
    )
    server.start()
    server.set_state("TRAINING")
    server.emitter.emit(Mark(text="here", client="me"))
    until(lambda: server.emitter.waiting["life"] == 0)
    yield server
    server.close()
    server.run.release()


@pytest.mark.parametrize("method", QUERIES)
def test_answer_to_a_query_is_of_its_type(told: Server, method: str) -> None:
    with Raw() as raw:
        lease = raw.ask("ctl", "lease.acquire", id="x")[0]
        assert lease["result"]["state"] == "done"
        params = NEEDED.get(method, {}) | ({"op": lease["id"]} if method == "op.get" else {})
        until(lambda: raw.ask("qry", "op.list")[0]["result"]["ops"][0]["state"] == "done")
        reply, lines = raw.ask("qry", method, params=params)
    assert_fits(reply["result"], METHODS[method].result)
    assert len(lines) == (method in ("snapshot", "replay", "history"))


@pytest.mark.parametrize("method", AT_ONCE)
def test_immediate_command_answers_with_its_result(server: Server, method: str) -> None:
    server.emitter.emit(Mark(text="a journal to rotate", client="me"))
    server.emitter.emit(Anomaly(kind="norm_drift", source="env07", severity="info", active=True))
    assert server.flush(60)
    with Raw() as raw:
        result = raw.ask("ctl", method, params=NEEDED.get(method, {}))[0]["result"]
    assert result.pop("state") == "done"
    assert_fits(result, METHODS[method].result)


def test_accepted_command_is_answered_as_the_schema_says(server: Server) -> None:
    with Raw() as raw:
        assert_fits(raw.ask("ctl", "pause")[0]["result"], Accepted)


def test_endpoints_are_told_by_every_door(told: Server) -> None:
    connection = json.loads(told.run.connection.read_bytes())
    with Raw() as raw:
        hello, status = (raw.ask("qry", name)[0]["result"] for name in ("hello", "status"))
    assert hello["endpoints"] == status["endpoints"]
    assert hello["endpoints"] == {"ipc": connection["endpoints"], "tcp": None}


@pytest.mark.parametrize("method", ["hello", "status"])
def test_published_run_answers_as_the_types_say(method: str) -> None:
    with publish("mine", config={"width": 3}) as run, Raw() as raw:
        run.log(step=1, loss=0.5)
        assert not run.asked("checkpoint")
        assert_fits(raw.ask("qry", method)[0]["result"], METHODS[method].result)
